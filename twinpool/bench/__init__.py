"""Measurements that `twinpool bench` makes."""
