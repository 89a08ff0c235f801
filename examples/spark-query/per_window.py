"""Counts trips by city and five minutes: a window's row is updated as records come."""

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, from_json, window

import headgate.spark

CHECKPOINT = "checkpoints/per_window"

spark = (
    SparkSession.builder.appName("per-window")
    .config("spark.sql.shuffle.partitions", 2)  # files of a batch, and of Spark's state
    .getOrCreate()
)
records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", "localhost:9092")
    .option("subscribe", "trips")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 200_000)
    .load()
)
trips = records.select(
    from_json(col("value").cast("string"), "id long, city string, at timestamp").alias("trip")
).select("trip.*")
# Records that are an hour late are left out, and older windows are forgotten.
counted = (
    trips.withWatermark("at", "1 hour")
    .groupBy(window("at", "5 minutes"), "city")
    .agg(count("*").alias("trips"))
    .select(col("window.start").alias("began"), "city", "trips")
)
query = headgate.spark.write(counted, "per_window.toml", CHECKPOINT, stateful=True).start()
query.awaitTermination()
