// For node's --require: let Azurite keep the bytes of deleted blobs.
//
// Every ten minutes Azurite 3.37 looks for them, and sorts its index of all bytes again for each that it finds. After a
// few hundred cases that takes minutes, in which it answers nothing.
const path = require("path");
const [, program = ""] = process.argv;

if (path.basename(program) === "azurite.js") {
  const constants = path.join(path.dirname(program), "blob", "utils", "constants.js");
  require(constants).DEFAULT_GC_INTERVAL_MS = 2 ** 31 - 1; // the longest that a timer takes
}
