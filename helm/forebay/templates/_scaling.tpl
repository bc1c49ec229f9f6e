{{/*
How fast replicas change, for the HPA of either kind: (dict of autoscaling).
*/}}
{{- define "forebay.behavior" -}}
scaleUp:
  stabilizationWindowSeconds: {{ int .scaleUp.stabilizationSeconds }}
  selectPolicy: Max
  policies:
    - type: Percent
      value: {{ int .scaleUp.percent }}
      periodSeconds: {{ int .scaleUp.periodSeconds }}
    - type: Pods
      value: {{ int .scaleUp.pods }}
      periodSeconds: {{ int .scaleUp.periodSeconds }}
# Slow: risk is 0 as soon as nothing waits, whether or not the last worker was needed for that.
scaleDown:
  stabilizationWindowSeconds: {{ int .scaleDown.stabilizationSeconds }}
  selectPolicy: Max
  policies:
    - type: Pods
      value: {{ int .scaleDown.pods }}
      periodSeconds: {{ int .scaleDown.periodSeconds }}
{{- end -}}

{{- define "forebay.replicasMaxReason" -}}
# The least of maxReplicas ({{ int .autoscaling.maxReplicas }}), partitions ({{ int .partitions }})
{{- if not .handler }} and what the backend takes ({{ include "forebay.backendRequestsMax" . }} requests, {{ int .autoscaling.requestsPerWorkerMin }} a worker){{ end }}.
{{- end -}}
