{{/*
What a container is told: files in /etc/forebay, variables, volumes.

Every component has a ConfigMap of its own (forebay.configData), mounted as /etc/forebay/config, and the Secrets and
ConfigMaps of kafka.files, each mounted as a folder /etc/forebay/files/<name>: a folder shows what is rotated, a single
file by subPath would not. No secret is in a variable.
*/}}

{{/*
The chart's kafka with the pool's over it, and over that the component's own, as JSON:
(list $ "topics" $pool.kafka .Values.topics.kafka). Checked.
*/}}
{{- define "forebay.kafka" -}}
{{- $root := index . 0 -}}
{{- $where := index . 1 -}}
{{- $kafka := deepCopy $root.Values.kafka -}}
{{- range slice . 2 -}}{{- $kafka = mergeOverwrite $kafka (deepCopy (default dict .)) -}}{{- end -}}
{{- if and $kafka.properties $kafka.propertiesFile -}}
{{- fail (printf "%s: kafka.properties and kafka.propertiesFile are both given; give the lines, or the file in a mounted Secret" $where) -}}
{{- end -}}
{{- range $name, $value := $kafka.properties -}}
{{- if and (regexMatch "(password|secret|jaas\\.config|\\.pem)$" $name) (not (hasPrefix "${directory:" (toString $value))) -}}
{{- fail (printf "%s: kafka.properties.%s would lie in a ConfigMap for all to read: put it into a Secret, mount that by kafka.files, and write ${directory:/etc/forebay/files/<name>:<key>}" $where $name) -}}
{{- end -}}
{{- end -}}
{{- range $name, $file := $kafka.files -}}
{{- if eq (not $file.secret) (not $file.configMap) -}}
{{- fail (printf "%s: kafka.files.%s needs a secret or a configMap, and not both" $where $name) -}}
{{- end -}}
{{- end -}}
{{- $kafka | toJson -}}
{{- end -}}

{{/*
The data of a component's ConfigMap: (dict "kafka" ... "config" ...). Empty when it needs none.
*/}}
{{- define "forebay.configData" -}}
{{- if .kafka.properties }}
kafka.properties: |
{{- range $name, $value := .kafka.properties }}
  {{ $name }}={{ ternary $value (toJson $value) (kindIs "string" $value) }}
{{- end }}
{{- end }}
{{- with .config }}
worker.toml: |
{{ . | trim | indent 2 }}
{{- end }}
{{- end -}}

{{/*
The variables that every container has: (dict "root" $ "kafka" ... "pool" ...).
*/}}
{{- define "forebay.commonEnv" -}}
- name: FOREBAY_BOOTSTRAP_SERVERS
  value: {{ .kafka.bootstrapServers | quote }}
{{- with .pool }}
- name: FOREBAY_POOL
  value: {{ . | quote }}
{{- end }}
{{- if .kafka.properties }}
- name: FOREBAY_KAFKA_PROPERTIES
  value: /etc/forebay/config/kafka.properties
{{- else if .kafka.propertiesFile }}
- name: FOREBAY_KAFKA_PROPERTIES
  value: {{ .kafka.propertiesFile | quote }}
{{- end }}
{{- with .kafka.tokenProvider }}
- name: FOREBAY_KAFKA_TOKEN_PROVIDER
  value: {{ . | quote }}
{{- end }}
{{- if .root.Values.otel.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .root.Values.otel.endpoint | quote }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.pod.name=$(POD_NAME),k8s.namespace.name={{ .root.Release.Namespace }}
{{- range $name, $value := .root.Values.otel.environment }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Settings as variables: a map of settings' names.
*/}}
{{- define "forebay.settingsEnv" -}}
{{- range $name, $value := . }}
- name: FOREBAY_{{ upper $name }}
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end -}}

{{/*
extraEnv: NAME: text, or NAME: {secretKeyRef: ...} and the like, or a list as Kubernetes has it:
(list "exporter" .Values.exporter.extraEnv).
*/}}
{{- define "forebay.extraEnv" -}}
{{- $where := index . 0 -}}
{{- $entries := index . 1 -}}
{{- if not (kindIs "slice" $entries) -}}
{{- $given := $entries -}}
{{- $entries = list -}}
{{- range $name, $value := $given -}}
{{- $entries = append $entries (ternary (dict "name" $name "valueFrom" $value) (dict "name" $name "value" (toString $value)) (kindIs "map" $value)) -}}
{{- end -}}
{{- end -}}
{{- range $entries -}}
{{- if hasPrefix "FOREBAY_" .name -}}
{{- fail (printf "%s.extraEnv sets %s: settings of forebay have values of their own, settings of a pool or producerSettings" $where .name) -}}
{{- end -}}
{{- end -}}
{{- with $entries }}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{/*
Volumes and their mounts: (dict "kafka" ... "configMap" the ConfigMap's name or "" "extra" extraVolumes), and of a worker
"engine" the name of the Secret with the engine's token.
*/}}
{{- define "forebay.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .configMap }}
- name: config
  configMap:
    name: {{ . }}
{{- end }}
{{- range $name, $file := .kafka.files }}
- name: files-{{ $name }}
  {{- if $file.secret }}
  secret:
    secretName: {{ $file.secret }}
    # Read by the group fsGroup alone.
    defaultMode: 0440
  {{- else }}
  configMap:
    name: {{ $file.configMap }}
  {{- end }}
{{- end }}
{{- with .engine }}
- name: engine
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- range $name, $extra := .extra }}
{{- if regexMatch "^(tmp|config|engine|files-.*)$" $name }}
{{- fail (printf "extraVolumes.%s: volumes of that name are the chart's own; give it another" $name) }}
{{- end }}
- name: {{ $name }}
  {{- toYaml $extra.volume | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "forebay.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- if .configMap }}
- name: config
  mountPath: /etc/forebay/config
  readOnly: true
{{- end }}
{{- range $name, $_ := .kafka.files }}
- name: files-{{ $name }}
  mountPath: /etc/forebay/files/{{ $name }}
  readOnly: true
{{- end }}
{{- if .engine }}
- name: engine
  mountPath: /etc/forebay/engine
  readOnly: true
{{- end }}
{{- range $name, $extra := .extra }}
- name: {{ $name }}
  mountPath: {{ $extra.mountPath }}
  readOnly: {{ ternary $extra.readOnly true (hasKey $extra "readOnly") }}
{{- end }}
{{- end -}}
