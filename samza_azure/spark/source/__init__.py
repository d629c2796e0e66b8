"""The data source that reads logs. Spark runs it in processes of its own; files connect them with the container."""
