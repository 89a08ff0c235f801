"""Joins two streams: each trip with its fare, which is paid within an hour."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, from_json

import headgate.spark

CHECKPOINT = "checkpoints/joined"

spark = (
    SparkSession.builder.appName("joined")
    .config("spark.sql.shuffle.partitions", 2)  # files of a batch, and of Spark's state
    .getOrCreate()
)


def stream(topic: str, schema: str) -> DataFrame:
    """Return the topic's values."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", "localhost:9092")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 200_000)
        .load()
    )
    return records.select(from_json(col("value").cast("string"), schema).alias("v")).select("v.*")


trips = stream("trips", "id long, city string, at timestamp").withWatermark("at", "2 hours")
fares = stream("fares", "trip long, fare double, paid timestamp").withWatermark("paid", "2 hours")
joined = trips.join(
    fares, expr("id = trip AND paid >= at AND paid <= at + interval 1 hour")
).select("id", "city", "at", "fare")
query = headgate.spark.write(joined, "joined.toml", CHECKPOINT, stateful=True).start()
query.awaitTermination()
