#!/bin/sh
# Kubernetes runs this in the pod of an executor before it ends the pod (preStop, spark.kubernetes.decommission.script).
# SIGPWR decommissions the executor: it ends its tasks, hands on its blocks, and ends. This waits for that, since
# Kubernetes sends SIGTERM when this returns, and for no longer than the grace period of the pod in any case.
for each in /proc/[0-9]*; do
    if [ "$(basename "$(readlink "$each/exe")")" = java ]; then # the only one of the pod
        kill -PWR "${each#/proc/}" && tail --pid="${each#/proc/}" --follow /dev/null
    fi
done
