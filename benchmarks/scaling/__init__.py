"""Replicas that an autoscaler keeps over a day of traffic: the chart's triggers in a model of KEDA and the HPA."""
