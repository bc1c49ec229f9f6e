{{/*
The variables of a pool's workers, and of its doctor: (dict "root" $ "pool" $pool "kafka" $kafka).
*/}}
{{- define "forebay.workerEnv" -}}
{{- $pool := .pool -}}
{{ include "forebay.commonEnv" (dict "root" .root "kafka" .kafka "pool" $pool.name) }}
{{- if $pool.handler }}
- name: FOREBAY_HANDLER
  value: {{ $pool.handler | quote }}
{{- else }}
- name: FOREBAY_BACKEND_URL
  value: {{ $pool.backend.url | quote }}
{{- end }}
{{- with $pool.backend.apiKeySecret }}
{{- if .name }}
- name: FOREBAY_BACKEND_API_KEY
  value: ${directory:/etc/forebay/engine:{{ .key }}}
{{- end }}
{{- end }}
- name: FOREBAY_DRAIN_SECONDS
  value: {{ int $pool.drainSeconds | quote }}
- name: FOREBAY_OPS_PORT
  value: "8081"
- name: FOREBAY_GPU
  value: {{ $pool.gpu.source }}
{{- if eq $pool.gpu.source "nvml" }}
# The container runtime then puts the driver's library into the container. No nvidia.com/gpu is asked for: the GPU stays
# the engine's.
- name: NVIDIA_VISIBLE_DEVICES
  value: {{ $pool.gpu.devices | quote }}
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- else if eq $pool.gpu.source "prometheus" }}
- name: FOREBAY_GPU_PROMETHEUS_URL
  value: {{ $pool.gpu.prometheusUrl | quote }}
- name: FOREBAY_GPU_PROMETHEUS_QUERY
  value: {{ $pool.gpu.prometheusQuery | quote }}
{{- end }}
{{- include "forebay.settingsEnv" $pool.settings }}
{{- include "forebay.extraEnv" (list (printf "pools.%s" $pool.key) $pool.extraEnv) }}
{{- end -}}
