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
{{- range $name, $wanted := .root.Values.image.pullSecrets }}
{{- if $wanted }}{{- $pullSecrets = append $pullSecrets (dict "name" $name) }}{{- end }}
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
  {{- values . | toYaml | nindent 2 }}
{{- end }}
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
{{- end -}}

{{/*
Probes of a long-running container on its port `ops`. Until it answers for the first time it has two minutes.
*/}}
{{- define "forebay.probes" -}}
startupProbe:
  httpGet:
    path: /livez
    port: ops
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 60
livenessProbe:
  httpGet:
    path: /livez
    port: ops
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet:
    path: /readyz
    port: ops
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end -}}
