"""Rights on Kafka: what each role may do, the rules that say so, and jobs that lack one."""
