"""What is known of sources: descriptions, positions, and what Kafka, Delta and files still have."""
