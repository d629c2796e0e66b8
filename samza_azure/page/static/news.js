// How the page hears of news: as server-sent events, and by asking whenever none have come for a while. Something in
// between may hold events back, and a connection that is broken on the way stays open here for a long time.

const ASK_MS = 5000, PATIENCE_MS = 20000, LOST_MS = 10000;

// Calls show(document) with all that comes, and lost(since, status) after each question without an answer, if nothing
// has come for a while; the status is 0 if there was no answer at all.
export function listen(show, lost) {
  let events, toldAt = 0, heardAt = Date.now(), asking = false;

  function hear(found) {
    heardAt = Date.now();
    show(found);
  }

  function open() {
    events = new EventSource("events");
    events.onmessage = (message) => {
      toldAt = Date.now();
      hear(JSON.parse(message.data));
    };
  }

  async function ask() {
    asking = true;
    let found = null, status = 0;
    try {
      const answer = await fetch("state.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
      status = answer.status;
      if (answer.ok) {
        heardAt = Date.now();
        found = await answer.json();
      }
    } catch {
      status = 0;
    } finally {
      asking = false;
    }
    if (found) hear(found);
    else if (Date.now() - heardAt >= LOST_MS) lost(heardAt, status);
  }

  open();
  setInterval(() => {
    // A browser opens a stream anew by itself, but not after an answer that is an error, such as a proxy's.
    if (events.readyState === EventSource.CLOSED) open();
    // By the events alone, and not by the answers: those come later than the tick that asked for them.
    if (!asking && Date.now() - toldAt >= ASK_MS) ask();
  }, ASK_MS);
}
