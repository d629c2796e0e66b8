"""Functions and state machines of the drawn pipelines, as text: they become part of the module that is run."""

SHOUT = """
@F.udf("string")
def shout(text):
    return None if text is None else text.upper() + "!"
"""

COUNT_IN_PANDAS = """
def count_until_the_hour_ends(key, frames, state):
    (n,) = state.get if state.exists else (0,)
    if state.hasTimedOut:
        state.remove()
        yield pd.DataFrame({"key": [key[0]], "hour": [key[1]], "n": [n]})
    else:
        state.update((n + sum(len(frame) for frame in frames),))
        state.setTimeoutTimestamp((int(key[1]) + 3600) * 1000)
"""
BY_PANDAS = '.applyInPandasWithState(count_until_the_hour_ends, "{schema}", "n bigint", "append", "EventTimeTimeout")'

COUNT_ROWS = """
class Counted(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key, rows, timerValues):
        before = self.count.get()[0] if self.count.exists() else 0
        self.count.update((before + sum(1 for _ in rows),))
        if not before:
            self.handle.registerTimer((int(key[1]) + 3600) * 1000)
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n = self.count.get()[0]
        self.count.clear()
        yield Row(key=key[0], hour=key[1], n=n)

    def close(self):
        pass
"""
BY_ROWS = '.transformWithState(Counted(), "{schema}", "append", "EventTime")'

COUNT_PANDAS = """
class CountedInPandas(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key, frames, timerValues):
        before = self.count.get()[0] if self.count.exists() else 0
        self.count.update((before + sum(len(frame) for frame in frames),))
        if not before:
            self.handle.registerTimer((int(key[1]) + 3600) * 1000)
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n = self.count.get()[0]
        self.count.clear()
        yield pd.DataFrame({"key": [key[0]], "hour": [key[1]], "n": [n]})

    def close(self):
        pass
"""
BY_PANDAS_MACHINE = '.transformWithStateInPandas(CountedInPandas(), "{schema}", "append", "EventTime")'
