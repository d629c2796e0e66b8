"""Look for windows that are over only in batches in which one may be.

An aggregation by windows keeps a row of state per group. In each batch Spark looks through all of them for groups whose
window has ended at the watermark, which takes 2 ms per MB of state in RocksDB. `Searches` looks at the physical plan of
each batch. If no window can have ended since the batch before, it has the operator put new rows into the state only:
that is Spark's update mode without the removal of old groups, behind which all rows are left out. In update mode it
leaves out the removal alone.
Promised: the rows that are emitted and the state are the same, batch by batch. After each batch there is no group with
an end at or below the batch's watermark: Spark has removed them, or there were none. What comes in later and is not
late ends above it. So a batch needs a search only if a window may end above the watermark of the batch before, at which
rows are late, and at or below its own. The ends of windows lie on a grid, which is read from the expressions that make
them. Where they cannot be read (a union, an event time as key) there is a search unless both watermarks are equal. That
needs no memory: it is so for the first batch of a new owner, too. Sessions have another operator, and are searched.
With `statefulOperator.allowMultiple = false`, which is refused, both watermarks would be equal, and nothing searched.
If this cannot look at a plan, there is a search.
`tests/spark/test_searches.py` compares rows and state, batch by batch.
"""

from samza_azure.spark.jvm.plan_rule import PLAN, PlanRule

NAME = "Searches"
#: With this setting queries that start do without. A container has it, unless its job file says "false".
LEFT_OUT = "spark.samza_azure.searches.left_out"
EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
ATTRIBUTE, EXPRESSION = f"{EXPRESSIONS}.Attribute", f"{EXPRESSIONS}.Expression"
NAMED, STRUCT = f"{EXPRESSIONS}.NamedExpression", f"{EXPRESSIONS}.CreateNamedStruct"
IN_MICROSECONDS = f"{EXPRESSIONS}.PreciseTimestampConversion"
TYPES = "org.apache.spark.sql.types"
SAVE = "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreSaveExec"
FILTER = "org.apache.spark.sql.execution.FilterExec"
PROJECT, EXPAND = "org.apache.spark.sql.execution.ProjectExec", "org.apache.spark.sql.execution.ExpandExec"
#: What is logged once if the rule fails.
KEPT = "Spark looks through the state of windows in each batch, which costs processor time and changes nothing else"
RULE = PlanRule(
    NAME,
    KEPT,
    f"""
        private static {PLAN} changed({PLAN} plan) {{
            {PLAN} made = ({PLAN}) plan.mapChildren(new scala.runtime.AbstractFunction1() {{
                public Object apply(Object child) {{
                    return changed(({PLAN}) child);
                }}
            }});
            if (!(plan instanceof {SAVE}) || !isNeedless(({SAVE}) plan)) return made;
            LEFT_OUT.incrementAndGet();
            {SAVE} save = ({SAVE}) made;
            {SAVE} kept = new {SAVE}(
                save.keyExpressions(), save.stateInfo(), scala.Option.apply(UPDATE),
                save.eventTimeWatermarkForLateEvents(), scala.Option.empty(), save.stateFormatVersion(), save.child()
            );
            if (save.outputMode().get().equals(UPDATE)) return kept;
            return new {FILTER}(new {EXPRESSIONS}.Literal(Boolean.FALSE, {TYPES}.DataTypes.BooleanType), kept);
        }}

        private static final long UNKNOWN = Long.MIN_VALUE;
        private static final Object UPDATE = org.apache.spark.sql.streaming.OutputMode.Update();
        private static final Object APPEND = org.apache.spark.sql.streaming.OutputMode.Append();

        private static boolean isNeedless({SAVE} save) {{
            if (save.outputMode().isEmpty() || save.watermarkExpressionForEviction().isEmpty()) return false;
            if (save.watermarkExpressionForLateEvents().isEmpty()) return false;
            Object mode = save.outputMode().get();
            if (!mode.equals(UPDATE) && !mode.equals(APPEND)) return false;
            {EXPRESSION} condition = ({EXPRESSION}) save.watermarkExpressionForEviction().get();
            if (condition.references().size() != 1) return false;
            {ATTRIBUTE} key = ({ATTRIBUTE}) condition.references().head();
            if (place(save.keyExpressions(), key) < 0) return false;
            long from = ((Number) save.eventTimeWatermarkForLateEvents().get()).longValue();
            long to = ((Number) save.eventTimeWatermarkForEviction().get()).longValue();
            if (from < 0 || to > Long.MAX_VALUE / 1000) return false;
            return to <= from || firstEnd(save.child(), key, from * 1000) > to * 1000;
        }}

        private static int place(scala.collection.Seq named, {ATTRIBUTE} wanted) {{
            int place = named.size() - 1;
            while (place >= 0 && !(({NAMED}) named.apply(place)).exprId().equals(wanted.exprId())) place--;
            return place;
        }}

        // The first end of a window after a time; the least number if that is not known.
        private static long firstEnd({PLAN} plan, {ATTRIBUTE} window, long after) {{
            while (true) {{
                if (plan instanceof {PROJECT}) {{
                    scala.collection.Seq made = (({PROJECT}) plan).projectList();
                    {EXPRESSION} maker = ({EXPRESSION}) made.apply(place(made, window));
                    if (maker instanceof {EXPRESSIONS}.Alias) maker = (({EXPRESSIONS}.Alias) maker).child();
                    if (!(maker instanceof {ATTRIBUTE})) return isMarked(window) ? endIn(maker, after) : UNKNOWN;
                    window = ({ATTRIBUTE}) maker;
                }} else if (plan instanceof {EXPAND}) {{
                    return isMarked(window) ? firstEnd(({EXPAND}) plan, window, after) : UNKNOWN;
                }}
                if (plan.children().size() != 1) return UNKNOWN;
                plan = ({PLAN}) plan.children().head();
                if (place(plan.output(), window) < 0) return UNKNOWN;
            }}
        }}

        private static boolean isMarked({ATTRIBUTE} window) {{
            return window.metadata().contains("spark.timeWindow");
        }}

        private static long firstEnd({EXPAND} plan, {ATTRIBUTE} window, long after) {{
            long first = UNKNOWN;
            for (int i = 0; i < plan.projections().size(); i++) {{
                scala.collection.Seq made = (scala.collection.Seq) plan.projections().apply(i);
                long end = endIn(({EXPRESSION}) made.apply(place(plan.output(), window)), after);
                if (end == UNKNOWN) return UNKNOWN;
                if (end > after) first = first == UNKNOWN ? end : Math.min(first, end);
            }}
            return first;
        }}

        // The end of the window of a time, by the expression that Spark has made for it.
        private static long endIn({EXPRESSION} maker, long time) {{
            if (!(maker instanceof {STRUCT}) || maker.children().size() != 4) return UNKNOWN;
            {EXPRESSION} end = at(({EXPRESSION}) maker.children().apply(3), time);
            if (!end.references().isEmpty() || !end.deterministic()) return UNKNOWN;
            Object found = end.eval(null);
            return found instanceof Long ? ((Long) found).longValue() : UNKNOWN;
        }}

        private static {EXPRESSION} at({EXPRESSION} expression, final long time) {{
            if (expression instanceof {IN_MICROSECONDS} && expression.children().head() instanceof {ATTRIBUTE}) {{
                return new {EXPRESSIONS}.Literal(Long.valueOf(time), {TYPES}.DataTypes.LongType);
            }}
            return ({EXPRESSION}) expression.mapChildren(new scala.runtime.AbstractFunction1() {{
                public Object apply(Object child) {{
                    return at(({EXPRESSION}) child, time);
                }}
            }});
        }}
""",
    LEFT_OUT,
)
SOURCE, install, left_out = RULE.source, RULE.install, RULE.left_out
