"""Run the operators of a stage in one go: no shuffle from one partition to one.

Each input of a stage is one partition, and so is its state, unless the job file says more (`stages.<name>.partitions`).
Spark does not know the first, so it shuffles the rows between the two: it writes all of them to disk, and runs a job in
two parts where one will do. `Exchanges` looks at the physical plan of each batch, and puts `Coalesce 1` in place of
such a shuffle, as Spark does for `coalesce(1)`.
Promised: the operator with state gets all rows, in the same order, in one partition, however many its input has, which
may be none. It reads its input to the end, so what is below it commits its state as before. State does not change.
A shuffle stays where rows of several inputs meet without state (a union), which are read side by side, and where Spark
computes it once for two operators. So does one between an aggregation and another operator if their state is in
RocksDB: there a thread hands the store that an aggregation has read on to what writes next, which would be the other.
If this cannot look at a plan, the plan keeps its shuffles: it costs time, and the rows are the same.
`tests/spark/test_exchanges.py` pins the plan of each operator with state.
"""

from samza_azure.spark.jvm.plan_rule import PLAN, PlanRule

NAME = "Exchanges"
#: With this setting queries that start do without. A container has it, unless its job file says "false".
REMOVED = "spark.samza_azure.exchanges.removed"
STATEFUL = "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator"
READER = "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreReader"
SHUFFLE = "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec"
BROADCAST = "org.apache.spark.sql.execution.exchange.BroadcastExchangeLike"
FOR_STATE = "org.apache.spark.sql.execution.exchange.REQUIRED_BY_STATEFUL_OPERATOR"
SCAN = "org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec"
#: What stands for a source in the plan that `explain` shows.
SHOWN = "org.apache.spark.sql.execution.streaming.runtime.StreamingRelationExec"
NO_ROWS = "org.apache.spark.sql.execution.LocalTableScanExec"
COALESCE = "org.apache.spark.sql.execution.CoalesceExec"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ON_DISK = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
#: What is logged once if the rule fails.
KEPT = "Spark shuffles the rows of stages with state, which costs processor time and changes nothing else"
RULE = PlanRule(
    NAME,
    REMOVED,
    KEPT,
    f"""
        private static {PLAN} changed({PLAN} plan) {{
            java.util.List shuffles = new java.util.ArrayList();
            collect(plan, shuffles);
            return shuffles.isEmpty() ? plan : without(plan, shuffles, false);
        }}

        private static void collect({PLAN} plan, java.util.List shuffles) {{
            if (plan instanceof {SHUFFLE}) shuffles.add(plan);
            for (int i = 0; i < plan.children().size(); i++) collect(({PLAN}) plan.children().apply(i), shuffles);
        }}

        // `isRead`: what is above, up to the next shuffle, reads a store that it writes later.
        private static {PLAN} without({PLAN} plan, final java.util.List shuffles, boolean isRead) {{
            if (isNeedless(plan, shuffles, isRead)) {{
                LEFT_OUT.incrementAndGet();
                return new {COALESCE}(1, without((({SHUFFLE}) plan).child(), shuffles, isRead));
            }}
            final boolean isReadAbove = READER.isInstance(plan) || isRead && !(plan instanceof {SHUFFLE});
            return ({PLAN}) plan.mapChildren(new scala.runtime.AbstractFunction1() {{
                public Object apply(Object child) {{
                    return without(({PLAN}) child, shuffles, isReadAbove);
                }}
            }});
        }}

        private static boolean isNeedless({PLAN} plan, java.util.List shuffles, boolean isRead) {{
            if (!(plan instanceof {SHUFFLE})) return false;
            {SHUFFLE} shuffle = ({SHUFFLE}) plan;
            if (!shuffle.shuffleOrigin().getClass().getName().equals("{FOR_STATE}$")) return false;
            if (shuffle.outputPartitioning().numPartitions() != 1 || !isOne(shuffle.child())) return false;
            if (isOnDisk(shuffle) && has(isRead ? STATE : READER, shuffle.child())) return false;
            for (int i = 0; i < shuffles.size(); i++) {{
                {SHUFFLE} other = ({SHUFFLE}) shuffles.get(i);
                if (other != shuffle && shuffle.sameResult(other)) return false;
            }}
            return true;
        }}

        private static boolean isOnDisk({PLAN} plan) {{
            return plan.conf().getConfString("{PROVIDER}", "").equals("{ON_DISK}");
        }}

        private static final Class STATE = {STATEFUL}.class;
        private static final Class READER = {READER}.class;

        private static boolean has(Class kind, {PLAN} plan) {{
            if (kind.isInstance(plan)) return true;
            if (plan instanceof {SHUFFLE}) return false;
            for (int i = 0; i < plan.children().size(); i++) {{
                if (has(kind, ({PLAN}) plan.children().apply(i))) return true;
            }}
            return false;
        }}

        private static boolean isOne({PLAN} plan) {{
            if (plan instanceof {SCAN} || plan instanceof {SHOWN}) return true;
            if (plan instanceof {NO_ROWS} || plan instanceof {STATEFUL}) return true;
            if (plan instanceof {SHUFFLE}) return plan.outputPartitioning().numPartitions() == 1;
            {PLAN} only = null;
            for (int i = 0; i < plan.children().size(); i++) {{
                {PLAN} child = ({PLAN}) plan.children().apply(i);
                if (child instanceof {BROADCAST}) continue;
                if (only != null) return false;
                only = child;
            }}
            return only != null && isOne(only);
        }}
""",
)
SOURCE, install, left_out = RULE.source, RULE.install, RULE.left_out
