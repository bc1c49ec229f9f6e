{{/*
Names and labels.
*/}}

{{- define "forebay.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "forebay.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
The name of an object: (list $ "worker" "qwen"). At most 52 characters, with a hash in place of what is cut off: what a
CronJob may have, and what leaves room for keda-hpa- before it and a pod's suffix behind it.
*/}}
{{- define "forebay.name" -}}
{{- $name := include "forebay.fullname" (first .) -}}
{{- range rest . -}}{{- $name = printf "%s-%s" $name . -}}{{- end -}}
{{- if gt (len $name) 52 -}}
{{- $name = printf "%s-%s" ($name | trunc 43 | trimSuffix "-") ($name | sha256sum | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/*
What selects the pods of a component: (list $ "worker" "qwen"). The last may be left out.
*/}}
{{- define "forebay.selectorLabels" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- if gt (len .) 1 }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}
{{- if gt (len .) 2 }}
forebay/pool: {{ index . 2 }}
{{- end }}
{{- end -}}

{{/*
The labels of a component's pods, with those that values give: (dict "component" (list $ "worker" "qwen") "more" a map
"where" its name). No versions: a new chart alone would restart them all.
*/}}
{{- define "forebay.podLabels" -}}
{{- $own := include "forebay.selectorLabels" .component | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "forebay" -}}
{{- include "forebay.mergedLabels" (dict "root" (first .component) "own" $own "more" .more "where" .where) -}}
{{- end -}}

{{/*
All labels of a component: (list $ "worker" "qwen").
*/}}
{{- define "forebay.labels" -}}
{{- include "forebay.labelsWith" (dict "component" .) -}}
{{- end -}}

{{/*
The same with those that values give: (dict "component" (list $ "worker") "more" a map "where" its name).
*/}}
{{- define "forebay.labelsWith" -}}
{{- $root := first .component -}}
{{- $own := include "forebay.selectorLabels" .component | fromYaml -}}
{{- $own = mergeOverwrite $own (dict "app.kubernetes.io/part-of" "forebay" "app.kubernetes.io/version" $root.Chart.AppVersion "app.kubernetes.io/managed-by" $root.Release.Service "helm.sh/chart" (include "forebay.chart" $root)) -}}
{{- include "forebay.mergedLabels" (dict "root" $root "own" $own "more" .more "where" .where) -}}
{{- end -}}

{{/*
One map of labels: commonLabels, over them those that values give, and the chart's own, which neither may name.
*/}}
{{- define "forebay.mergedLabels" -}}
{{- range $where, $labels := dict "commonLabels" .root.Values.commonLabels (default "labels" .where) (default dict .more) -}}
{{- range $name, $_ := $labels -}}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|component|part-of|version|managed-by)|helm\\.sh/chart|forebay/pool)$" $name -}}
{{- fail (printf "%s sets %s, which is the chart's own: by it its pods are found; take it out" $where $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .root.Values.commonLabels) (deepCopy (default dict .more)) .own | toYaml -}}
{{- end -}}

{{- define "forebay.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else -}}
{{- ternary (include "forebay.fullname" .) "default" .Values.serviceAccount.create -}}
{{- end -}}
{{- end -}}

{{/*
An image: (dict "root" $ "image" ...). A digest beats a tag; the tag is the chart's appVersion unless given.
*/}}
{{- define "forebay.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/*
The ports of URLs, each once, as NetworkPolicies have them.
*/}}
{{- define "forebay.urlPorts" -}}
{{- $ports := list -}}
{{- range . -}}{{- $ports = append $ports (include "forebay.urlPort" . | int) -}}{{- end -}}
{{- range $ports | uniq }}
- port: {{ . }}
{{- end }}
{{- end -}}

{{/*
The port of a URL.
*/}}
{{- define "forebay.urlPort" -}}
{{- $url := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- if $port -}}{{- $port -}}{{- else -}}{{- ternary "443" "80" (eq $url.scheme "https") -}}{{- end -}}
{{- end -}}
