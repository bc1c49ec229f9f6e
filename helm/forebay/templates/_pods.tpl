{{/*
What all pods have in common.
*/}}

{{/*
The metadata of a pod: (dict "root" $ "labels" (list $ "worker" "qwen") "of" its values "checksum" text).
*/}}
{{- define "forebay.podMetadata" -}}
labels:
  {{- include "forebay.podLabels" (dict "component" .labels "more" .of.podLabels "where" "podLabels") | nindent 2 }}
{{- if or .checksum .of.podAnnotations }}
annotations:
  {{- with .checksum }}
  # A changed ConfigMap alone would restart nothing.
  checksum/config: {{ sha256sum . }}
  {{- end }}
  {{- with .of.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/*
The part of a pod's spec that does not depend on the component: (dict "root" $ "of" its values).
*/}}
{{- define "forebay.podSpec" -}}
automountServiceAccountToken: false
# Kubernetes would tell about every Service in the namespace by variables, FOREBAY_GATEWAY_PORT among them.
enableServiceLinks: false
{{- $pullSecrets := list }}
{{- if kindIs "slice" .root.Values.image.pullSecrets }}
{{- $pullSecrets = .root.Values.image.pullSecrets }}
{{- else }}
{{- range $name, $wanted := .root.Values.image.pullSecrets }}
{{- if $wanted }}{{- $pullSecrets = append $pullSecrets (dict "name" $name) }}{{- end }}
{{- end }}
{{- end }}
{{- with $pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations:
  {{- if kindIs "slice" . }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  {{- values . | toYaml | nindent 2 }}
  {{- end }}
{{- end }}
{{- with .of.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
The containers that values give beside the chart's own, which must not have its name: (dict "of" its values "key"
"initContainers" "own" "worker" "where" "pools.qwen").
*/}}
{{- define "forebay.moreContainers" -}}
{{- $own := .own -}}
{{- $where := printf "%s.%s" .where .key -}}
{{- range get .of .key -}}
{{- if eq (toString .name) $own -}}
{{- fail (printf "%s: a container of the name %s is the chart's own; give it another" $where $own) -}}
{{- end -}}
{{- end -}}
{{- with get .of .key }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/*
The part of a container that does not depend on the component: (dict "root" $ "image" ... "of" its values).
*/}}
{{- define "forebay.container" -}}
image: {{ include "forebay.image" (dict "root" .root "image" .image) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- toYaml .root.Values.securityContext | nindent 2 }}
resources:
  {{- toYaml .of.resources | nindent 2 }}
{{- with .of.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
Probes of a long-running container on its port `ops`: its values. Until it answers for the first time it has two minutes,
unless they say otherwise.
*/}}
{{- define "forebay.probes" -}}
{{- range $kind, $path := dict "startup" "/livez" "liveness" "/livez" "readiness" "/readyz" }}
{{ $kind }}Probe:
  httpGet:
    path: {{ $path }}
    port: ops
  {{- range $name, $seconds := get $.probes $kind }}
  {{- if ne $seconds nil }}
  {{ $name }}: {{ int $seconds }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/*
What a Deployment says of its rollouts: its values.
*/}}
{{- define "forebay.rollout" -}}
{{- with .minReadySeconds }}
minReadySeconds: {{ int . }}
{{- end }}
progressDeadlineSeconds: {{ int .progressDeadlineSeconds }}
revisionHistoryLimit: 5
{{- end -}}

{{/*
How many pods a node's drain may take at a time: (dict "of" podDisruptionBudget "labels" (list $ "worker" "qwen")).
*/}}
{{- define "forebay.disruptionBudget" -}}
# Never minAvailable: with one replica that would keep a node from being drained.
maxUnavailable: {{ int .of.maxUnavailable }}
# A pod that is not ready does no work, and must not keep a node from being drained.
unhealthyPodEvictionPolicy: AlwaysAllow
selector:
  matchLabels:
    {{- include "forebay.selectorLabels" .labels | nindent 4 }}
{{- end -}}

{{/*
How pods are spread: (dict "over" topologySpread "labels" (list $ "worker" "qwen")).
*/}}
{{- define "forebay.spread" -}}
{{- $labels := .labels -}}
{{- with .over }}
topologySpreadConstraints:
  {{- range $topology, $unsatisfiable := . }}
  - topologyKey: {{ $topology }}
    whenUnsatisfiable: {{ $unsatisfiable }}
    maxSkew: 1
    labelSelector:
      matchLabels:
        {{- include "forebay.selectorLabels" $labels | nindent 8 }}
    # A rollout spreads its own pods, without those that it replaces.
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end -}}
