// How the page hears of news: as server-sent events, and by asking whenever none have come for a while. Something in
// between may hold events back, and a connection that is broken on the way stays open here for a long time.

const ASK_MS = 5000, PATIENCE_MS = 20000;

// Calls show(document) with all that comes, and failed() if a question has no answer.
export function listen(show, failed) {
  let events, toldAt = 0, asking = false;

  function open() {
    events = new EventSource("events");
    events.onmessage = (message) => {
      toldAt = Date.now();
      show(JSON.parse(message.data));
    };
  }

  async function ask() {
    asking = true;
    try {
      const answer = await fetch("state.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
      if (answer.ok) show(await answer.json());
    } catch {
      failed();
    } finally {
      asking = false;
    }
  }

  open();
  setInterval(() => {
    // A browser opens a stream anew by itself, but not after an answer that is an error, such as a proxy's.
    if (events.readyState === EventSource.CLOSED) open();
    // By the events alone, and not by the answers: those come later than the tick that asked for them.
    if (!asking && Date.now() - toldAt >= ASK_MS) ask();
  }, ASK_MS);
}
