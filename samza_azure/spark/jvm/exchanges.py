"""Shuffle the rows of a stage only where an operator with state needs it, and there also if Spark would not.

Each input of a stage is one partition, and so is its state, unless the job file says more (`stages.<name>.partitions`).
Spark does not know the first, so it shuffles the rows between the two: it writes all of them to disk, and runs a job in
two parts where one will do. `Exchanges` looks at the physical plan of each batch, and puts `Coalesce 1` in place of
such a shuffle, as Spark does for `coalesce(1)`.
Promised: the operator with state gets all rows, in the same order, in one partition, however many its input has, which
may be none. It reads its input to the end, so what is below it commits its state as before. State does not change.
A shuffle stays where rows of several inputs meet without state (a union), which are read side by side, and where Spark
computes it once for two operators. So do those of the parts of a union that Spark runs in one task for an operator
above, unless all of them go: it would get the partitions of each part.

With state in RocksDB an aggregation does not run in one task with another operator that takes its store from the same
place. An aggregation reads its store before it writes it, and leaves it to its thread for the latter; Spark takes what
a thread has for the store of any operator, and fails the batch. So a shuffle between such operators stays, and where
Spark plans none, since the keys are the same or there is one partition, there is one: as Spark would make it, by what
the upper operator requires of its input. Joins take their stores otherwise.

If this cannot look at a plan, the plan keeps its shuffles: it costs time, and the rows are the same. A batch whose plan
would have needed one more fails.
`tests/spark/test_exchanges.py` pins the plan of each operator with state.
"""

from samza_azure.spark.jvm.plan_rule import PLAN, PlanRule

NAME = "Exchanges"
#: With this setting queries that start do without. A container has it, unless its job file says "false".
REMOVED = "spark.samza_azure.exchanges.removed"
#: With "false" none is added. It is there for the test that Spark still needs them, and not for users.
ADDED = "spark.samza_azure.exchanges.added"
STATE = "org.apache.spark.sql.execution.streaming.operators.stateful"
STATEFUL, READER = f"{STATE}.StatefulOperator", f"{STATE}.StateStoreReader"
SAVE, SAVE_SESSIONS = f"{STATE}.StateStoreSaveExec", f"{STATE}.SessionWindowStateStoreSaveExec"
JOIN = f"{STATE}.join.StreamingSymmetricHashJoinExec"
SHUFFLE = "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec"
BROADCAST = "org.apache.spark.sql.execution.exchange.BroadcastExchangeLike"
FOR_STATE = "org.apache.spark.sql.execution.exchange.REQUIRED_BY_STATEFUL_OPERATOR"
PHYSICAL = "org.apache.spark.sql.catalyst.plans.physical"
DISTRIBUTION, PARTITIONING = f"{PHYSICAL}.Distribution", f"{PHYSICAL}.Partitioning"
BY_KEY, IN_ONE = f"{PHYSICAL}.StatefulOpClusteredDistribution", f"{PHYSICAL}.AllTuples"
HASHED, UNKNOWN = f"{PHYSICAL}.HashPartitioning", f"{PHYSICAL}.UnknownPartitioning"
ANY_OF = f"{PHYSICAL}.PartitioningCollection"
SORT, UNION = "org.apache.spark.sql.execution.SortExec", "org.apache.spark.sql.execution.UnionExec"
SCAN = "org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec"
#: What stands for a source in the plan that `explain` shows.
SHOWN = "org.apache.spark.sql.execution.streaming.runtime.StreamingRelationExec"
NO_ROWS = "org.apache.spark.sql.execution.LocalTableScanExec"
COALESCE = "org.apache.spark.sql.execution.CoalesceExec"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ON_DISK = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
#: What is logged once if the rule fails.
KEPT = (
    "Spark shuffles the rows of stages with state, which costs processor time and changes nothing else. With state in "
    "RocksDB it fails in the first batch if an aggregation and another operator run in one task"
)
RULE = PlanRule(
    NAME,
    KEPT,
    f"""
        private static {PLAN} changed({PLAN} plan) {{
            Work work = new Work(plan);
            if (work.adds) plan = work.apart(plan, 0, false);
            if (work.removes) plan = work.without(plan, 0, false);
            LEFT_OUT.addAndGet(work.leftOut);
            return plan;
        }}

        private static final class Work {{
            // What a task holds: an operator that reads its store before it writes it; one whose first row is asked
            // for by the operator above, and not before; one that writes its store.
            private static final int READS = 1, READS_LATE = 2, WRITES = 4;
            private final java.util.List shuffles = new java.util.ArrayList();
            private int readers = 0, writers = 0, leftOut = 0;
            private final boolean isOnDisk, adds, removes;

            Work({PLAN} plan) {{
                collect(plan);
                isOnDisk = is(plan, "{PROVIDER}", "{ON_DISK}") && readers > 0 && readers + writers > 1;
                adds = isOnDisk && !is(plan, "{ADDED}", "false");
                removes = is(plan, "{REMOVED}", "true") && !shuffles.isEmpty();
            }}

            private void collect({PLAN} plan) {{
                if (plan instanceof {SHUFFLE}) shuffles.add(plan);
                if (own(plan) == READS) readers++;
                if (own(plan) == WRITES) writers++;
                for (int i = 0; i < plan.children().size(); i++) collect(({PLAN}) plan.children().apply(i));
            }}

            private static boolean is({PLAN} plan, String setting, String value) {{
                return plan.conf().getConfString(setting, "").equals(value);
            }}

            // `above`: what the next operator with state is, in the same task. `isWithin`: below what writes the store
            // of an aggregation, and above what reads it.
            {PLAN} apart(final {PLAN} plan, int above, boolean isWithin) {{
                final boolean isWithinHere = isSave(plan) || isWithin && own(plan) != READS;
                final boolean isFirst = plan.children().size() > 1 || isElsewhere(plan);
                final int next = own(plan) != 0 || isFirst ? own(plan) : above;
                final int[] number = {{0}}, nearest = new int[plan.children().size()];
                for (int i = 0; i < nearest.length; i++) nearest[i] = nearest(({PLAN}) plan.children().apply(i));
                return ({PLAN}) plan.mapChildren(new scala.runtime.AbstractFunction1() {{
                    public Object apply(Object child) {{
                        int at = number[0]++, others = next;
                        for (int i = 0; i < nearest.length; i++) if (i != at) others |= nearest[i];
                        {PLAN} made = apart(({PLAN}) child, next, isWithinHere);
                        boolean isTogether = !isWithinHere && !isSave(made) && collide(others, nearest(made));
                        if (isTogether) made = shuffled(plan, at, made);
                        nearest[at] = nearest(made);
                        return made;
                    }}
                }});
            }}

            // What an operator takes from another one, from a task of its own.
            private static {PLAN} shuffled({PLAN} plan, int at, {PLAN} child) {{
                final {PARTITIONING} partitioning = partitioning(plan, at, child);
                if (partitioning == null) return child;
                if (child instanceof {SORT}) {{
                    return ({PLAN}) child.mapChildren(new scala.runtime.AbstractFunction1() {{
                        public Object apply(Object unsorted) {{
                            return shuffled(partitioning, ({PLAN}) unsorted);
                        }}
                    }});
                }}
                boolean isSorted = !((scala.collection.Seq) plan.requiredChildOrdering().apply(at)).isEmpty();
                return isSorted ? child : shuffled(partitioning, child);
            }}

            private static {PLAN} shuffled({PARTITIONING} partitioning, {PLAN} plan) {{
                return new {SHUFFLE}(partitioning, plan, {FOR_STATE}$.MODULE$, scala.Option.empty(), false);
            }}

            // As the operator requires it; null if it does not.
            private static {PARTITIONING} partitioning({PLAN} plan, int at, {PLAN} child) {{
                {DISTRIBUTION} required = ({DISTRIBUTION}) plan.requiredChildDistribution().apply(at);
                if (required instanceof {BY_KEY} || required instanceof {IN_ONE}$) {{
                    return required.createPartitioning(((Integer) required.requiredNumPartitions().get()).intValue());
                }}
                // The parts of a union run in one task if they have the same partitions.
                {PARTITIONING} found = child.outputPartitioning();
                if (!(plan instanceof {UNION}) || !isOneTask(plan)) return null;
                while (found instanceof {ANY_OF}) found = ({PARTITIONING}) (({ANY_OF}) found).partitionings().head();
                return found instanceof {HASHED} ? found : null;
            }}

            private static boolean isOneTask({PLAN} union) {{
                return !(union.outputPartitioning() instanceof {UNKNOWN});
            }}

            // `others`: what may run in the same task, and is not in this plan. `isBelow`: so does what needs the
            // partitions of this plan as they are.
            {PLAN} without({PLAN} plan, int others, boolean isBelow) {{
                if (isNeedless(plan, others)) {{
                    leftOut++;
                    return new {COALESCE}(1, without((({SHUFFLE}) plan).child(), others, true));
                }}
                if (!(plan instanceof {UNION})) return withoutBelow(plan, others, isBelow, true);
                int before = leftOut;
                {PLAN} made = withoutBelow(plan, others, isBelow, true);
                if (isOneTask(made) == isOneTask(plan) || !isBelow && !isOnDisk) return made;
                leftOut = before;
                return withoutBelow(plan, others, isBelow, false);
            }}

            private {PLAN} withoutBelow({PLAN} plan, int others, boolean isBelow, final boolean removes) {{
                final boolean isBelowHere = !isElsewhere(plan) && (isBelow || plan instanceof {STATEFUL});
                final int next = isElsewhere(plan) ? 0 : others | own(plan);
                final int[] number = {{0}}, held = new int[plan.children().size()];
                for (int i = 0; isOnDisk && i < held.length; i++) held[i] = held(({PLAN}) plan.children().apply(i));
                return ({PLAN}) plan.mapChildren(new scala.runtime.AbstractFunction1() {{
                    public Object apply(Object child) {{
                        int at = number[0]++, found = next;
                        for (int i = 0; i < held.length; i++) if (i != at) found |= held[i];
                        return removes ? without(({PLAN}) child, found, isBelowHere) : child;
                    }}
                }});
            }}

            private boolean isNeedless({PLAN} plan, int others) {{
                if (!(plan instanceof {SHUFFLE})) return false;
                {SHUFFLE} shuffle = ({SHUFFLE}) plan;
                if (!shuffle.shuffleOrigin().getClass().getName().equals("{FOR_STATE}$")) return false;
                if (shuffle.outputPartitioning().numPartitions() != 1 || !isOne(shuffle.child())) return false;
                if (isOnDisk && collide(others, late(held(shuffle.child())))) return false;
                for (int i = 0; i < shuffles.size(); i++) {{
                    {SHUFFLE} other = ({SHUFFLE}) shuffles.get(i);
                    if (other != shuffle && shuffle.sameResult(other)) return false;
                }}
                return true;
            }}

            private static boolean isElsewhere({PLAN} plan) {{
                return plan instanceof {SHUFFLE} || plan instanceof {BROADCAST};
            }}

            private static boolean isSave({PLAN} plan) {{
                return plan instanceof {SAVE} || plan instanceof {SAVE_SESSIONS};
            }}

            private static int own({PLAN} plan) {{
                if (plan instanceof {READER}) return READS;
                return !(plan instanceof {STATEFUL}) || isSave(plan) || plan instanceof {JOIN} ? 0 : WRITES;
            }}

            // The first operators with state, from above, that run in the task that runs the plan.
            private static int nearest({PLAN} plan) {{
                if (isElsewhere(plan)) return 0;
                int found = own(plan);
                if (found != 0) return found;
                for (int i = 0; i < plan.children().size(); i++) found |= nearest(({PLAN}) plan.children().apply(i));
                return plan instanceof {UNION} ? late(found) : found;
            }}

            // All of those.
            private static int held({PLAN} plan) {{
                if (isElsewhere(plan)) return 0;
                int found = own(plan);
                for (int i = 0; i < plan.children().size(); i++) found |= held(({PLAN}) plan.children().apply(i));
                return plan instanceof {UNION} || plan instanceof {COALESCE} ? late(found) : found;
            }}

            private static int late(int held) {{
                return (held & READS) == 0 ? held : held | READS_LATE;
            }}

            // An aggregation asks for rows between the moments at which it reads its store and writes it.
            private static boolean collide(int others, int below) {{
                if ((others & READS) != 0 && (below & (WRITES | READS_LATE)) != 0) return true;
                return (others & WRITES) != 0 && (below & READS) != 0;
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
        }}
""",
)
SOURCE, install, left_out = RULE.source, RULE.install, RULE.left_out
