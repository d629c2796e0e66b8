"""The container: a SparkSession and one query per task. The only folder that imports pyspark."""
