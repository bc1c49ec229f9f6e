{{/*
The pools and what follows from their values.
*/}}

{{/*
The pools as JSON, name -> values: what the pool says over what poolDefaults says, checked.
*/}}
{{- define "forebay.pools" -}}
{{- $root := . -}}
{{- $pools := dict -}}
{{- $keys := dict -}}
{{- range $key, $given := default (dict "default" dict) .Values.pools -}}
{{- $pool := mergeOverwrite (deepCopy $root.Values.poolDefaults) (deepCopy (default dict $given)) -}}
{{- $_ := set $pool "key" $key -}}
{{- $_ := set $pool "name" (default $key $pool.name) -}}
{{- $_ := set $pool "image" (mergeOverwrite (deepCopy $root.Values.image.worker) (include "forebay.given" $pool.image | fromJson)) -}}
{{- $_ := set $pool "toml" (include "forebay.toml" $pool | fromJson) -}}
{{- include "forebay.checkPool" (list $root $pool) -}}
{{- if hasKey $keys $pool.name -}}
{{- fail (printf "pools.%s and pools.%s are both the pool %s in Kafka: give one of them another name" (get $keys $pool.name) $key $pool.name) -}}
{{- end -}}
{{- $_ := set $keys $pool.name $key -}}
{{- $_ := set $pools $key $pool -}}
{{- end -}}
{{- $pools | toJson -}}
{{- end -}}

{{/*
The entries of a map that are not empty, as JSON. A digest takes the place of a tag that stands beneath it.
*/}}
{{- define "forebay.given" -}}
{{- $given := dict -}}
{{- range $name, $value := . -}}{{- if $value -}}{{- $_ := set $given $name $value -}}{{- end -}}{{- end -}}
{{- if and $given.tag (not $given.digest) -}}{{- $_ := set $given "digest" "" -}}{{- end -}}
{{- $given | toJson -}}
{{- end -}}

{{/*
The settings in a pool's config, as JSON.
*/}}
{{- define "forebay.toml" -}}
{{- $toml := dict -}}
{{- if .config -}}
{{- $toml = fromToml .config -}}
{{- if hasKey $toml "Error" -}}
{{- fail (printf "pools.%s.config is not TOML: %s" .key (get $toml "Error")) -}}
{{- end -}}
{{- end -}}
{{- $toml | toJson -}}
{{- end -}}

{{/*
What a key may be that names Kubernetes objects: a pool's, a job's.
*/}}
{{- define "forebay.keyPattern" -}}
^[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?$
{{- end -}}

{{- define "forebay.checkPool" -}}
{{- $root := index . 0 -}}
{{- $pool := index . 1 -}}
{{- $where := printf "pools.%s" $pool.key -}}
{{- /* Not in the schema: Helm's validator names a random place for a name that is wrong. */ -}}
{{- if not (regexMatch (include "forebay.keyPattern" .) $pool.key) -}}
{{- fail (printf "pools.%s: a pool's key names Kubernetes objects: give 1 to 30 lower-case letters, digits and hyphens; in Kafka it may have another name, by pools.<key>.name" $pool.key) -}}
{{- end -}}
{{- $hasUrl := ne $pool.backend.url "" -}}
{{- if and $pool.handler $hasUrl -}}
{{- fail (printf "%s has both backend.url and handler: a worker has one of them; with a handler, give backend.url: \"\"" $where) -}}
{{- end -}}
{{- if not (or $pool.handler $hasUrl) -}}
{{- fail (printf "%s has neither backend.url nor handler: give the engine's URL, or module:function" $where) -}}
{{- end -}}
{{- range $name := list "backend_api_key" "drain_seconds" "bootstrap_servers" "pool" "kafka_properties" "kafka_token_provider" "worker_id" "ops_host" "ops_port" "gpu" "gpu_devices" "gpu_prometheus_url" "gpu_prometheus_query" -}}
{{- if hasKey $pool.toml $name -}}
{{- fail (printf "%s.config sets %s, which has a value of its own in the chart: take that line out" $where $name) -}}
{{- end -}}
{{- end -}}
{{- /* calibrate writes down whom it loaded, by the address that it had; backend.url beats that. */ -}}
{{- if and (hasKey $pool.toml "handler") (not $pool.handler) -}}
{{- fail (printf "%s.config is for a handler: give %s.handler, and backend.url: \"\"" $where $where) -}}
{{- end -}}
{{- if and (hasKey $pool.toml "backend_url") $pool.handler -}}
{{- fail (printf "%s.config is for an engine, and %s has a handler: take backend_url out of it" $where $where) -}}
{{- end -}}
{{- $partitions := int $pool.partitions -}}
{{- if eq $pool.autoscaling.kind "none" -}}
{{- if gt (int $pool.replicas) $partitions -}}
{{- fail (printf "%s.replicas is %d, above its %d partitions: the others would have nothing to read; give more partitions or fewer replicas" $where (int $pool.replicas) $partitions) -}}
{{- end -}}
{{- else -}}
{{- $max := include "forebay.replicasMax" $pool | int -}}
{{- if gt (int $pool.autoscaling.minReplicas) $max -}}
{{- fail (printf "%s.autoscaling.minReplicas is %d, above the %d that maxReplicas, partitions and the backend allow; see docs/scaling.md" $where (int $pool.autoscaling.minReplicas) $max) -}}
{{- end -}}
{{- if and (eq $pool.autoscaling.kind "hpa") (lt (int $pool.autoscaling.minReplicas) 1) -}}
{{- fail (printf "%s.autoscaling.minReplicas is 0: an HPA cannot start from nothing; give 1, or kind: keda" $where) -}}
{{- end -}}
{{- $lag := $pool.autoscaling.keda.kafkaLag -}}
{{- if and (eq $pool.autoscaling.kind "keda") $lag.enabled (not $lag.authentication) (not (hasKey $lag.metadata "tls")) (not (hasKey $lag.metadata "sasl")) -}}
{{- $kafka := include "forebay.kafka" (list $root $where $pool.kafka) | fromJson -}}
{{- if or $kafka.propertiesFile $kafka.tokenProvider (ne (get (default dict $kafka.properties) "security.protocol" | default "PLAINTEXT" | upper) "PLAINTEXT") -}}
{{- fail (printf "%s.autoscaling.keda.kafkaLag.enabled: KEDA cannot read this Kafka without kafkaLag.authentication (a TriggerAuthentication), and one trigger that fails leaves the pool without any scaling; give it, or leave kafkaLag off" $where) -}}
{{- end -}}
{{- end -}}
{{- if and (not $root.Values.exporter.enabled) (not (and (eq $pool.autoscaling.kind "hpa") (eq $pool.autoscaling.hpa.metric "cpu"))) -}}
{{- fail (printf "%s.autoscaling.kind is %s, which reads the exporter's forebay_deadline_risk_ratio: give exporter.enabled: true" $where $pool.autoscaling.kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
A worker setting: of `settings`, else of `config`, else the default: (list $pool "limit_max" 256).
*/}}
{{- define "forebay.setting" -}}
{{- $pool := index . 0 -}}
{{- $name := index . 1 -}}
{{- if hasKey $pool.settings $name -}}
{{- get $pool.settings $name -}}
{{- else if hasKey $pool.toml $name -}}
{{- get $pool.toml $name -}}
{{- else -}}
{{- index . 2 -}}
{{- end -}}
{{- end -}}

{{/*
The deadlines and waits of a pool's tiers, by the settings' names, as JSON: what its workers are told, for who else needs it.
*/}}
{{- define "forebay.tierTimes" -}}
{{- $times := dict -}}
{{- range $name := list "tier_ttl_ms" "tier_wait_ms" -}}
{{- if hasKey $.settings $name -}}{{- $_ := set $times $name (get $.settings $name) -}}
{{- else if hasKey $.toml $name -}}{{- $_ := set $times $name (get $.toml $name) -}}{{- end -}}
{{- end -}}
{{- $times | toJson -}}
{{- end -}}

{{/*
Those of several pools by their names, as JSON, for the exporter; pools with the defaults are left out: (list $ keys).
*/}}
{{- define "forebay.exporterTierTimes" -}}
{{- $found := dict -}}
{{- $pools := include "forebay.pools" (index . 0) | fromJson -}}
{{- range index . 1 -}}
{{- $pool := get $pools . -}}
{{- $times := dict -}}
{{- range $name, $value := include "forebay.tierTimes" $pool | fromJson -}}{{- $_ := set $times (trimPrefix "tier_" $name) $value -}}{{- end -}}
{{- if $times -}}{{- $_ := set $found $pool.name $times -}}{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/*
The settings of `forebay` for one pool, as JSON: (list $ $pool). The pool's deadlines and waits are its workers'.
*/}}
{{- define "forebay.producerSettings" -}}
{{- $settings := deepCopy (index . 0).Values.producerSettings -}}
{{- range $name, $value := include "forebay.tierTimes" (index . 1) | fromJson -}}{{- $_ := set $settings $name $value -}}{{- end -}}
{{- $settings | toJson -}}
{{- end -}}

{{/*
A quantity of memory as bytes; 0 for what is none.
*/}}
{{- define "forebay.memoryBytes" -}}
{{- if kindIs "string" . -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mulf (regexFind "^[0-9]+([.][0-9]+)?" . | float64) (get $units (regexReplaceAll "^[0-9.]+" . "") | float64) | int64 -}}
{{- else -}}
{{- int64 . -}}
{{- end -}}
{{- end -}}

{{/*
What a worker of the pool may take of memory, in MiB: 256, and what its settings bound. As the doctor's check `host`.
*/}}
{{- define "forebay.memoryMebibytesNeeded" -}}
{{- $buffer := include "forebay.setting" (list . "buffer_bytes_max" 67108864) | float64 | int64 -}}
{{- $inFlight := include "forebay.setting" (list . "in_flight_bytes_max" 268435456) | float64 | int64 -}}
{{- add 256 (div (add $buffer $inFlight) 1048576) -}}
{{- end -}}

{{/*
How many requests the pool's backend takes at most: limit_max of all its workers together, 256 unless set.
*/}}
{{- define "forebay.backendRequestsMax" -}}
{{- include "forebay.setting" (list . "limit_max" 256) -}}
{{- end -}}

{{/*
The most workers that make sense: maxReplicas, but
- no more than the pool's partitions, since a worker without a partition reads nothing; and
- no more than the backend has work for: they share what it takes (limit_max), and each needs requestsPerWorkerMin of it.
  A handler runs in the worker, so that more workers do more.
*/}}
{{- define "forebay.replicasMax" -}}
{{- $max := min (int .autoscaling.maxReplicas) (int .partitions) -}}
{{- if not .handler -}}
{{- $max = min $max (max 1 (div (include "forebay.backendRequestsMax" . | float64 | int) (int .autoscaling.requestsPerWorkerMin))) -}}
{{- end -}}
{{- $max -}}
{{- end -}}

{{/*
The kafka of everything that connects, as a JSON list: of pools, exporter, topics and jobs.
*/}}
{{- define "forebay.kafkas" -}}
{{- $root := . -}}
{{- $kafkas := list -}}
{{- range $key, $pool := include "forebay.pools" . | fromJson -}}
{{- range $where, $own := dict (printf "pools.%s" $key) dict "exporter" $root.Values.exporter.kafka "topics" $root.Values.topics.kafka -}}
{{- $kafkas = append $kafkas (include "forebay.kafka" (list $root $where $pool.kafka $own) | fromJson) -}}
{{- end -}}
{{- end -}}
{{- range $key, $given := $root.Values.jobs -}}
{{- $job := mergeOverwrite (deepCopy $root.Values.jobDefaults) (deepCopy $given) -}}
{{- $where := printf "jobs.%s" $key -}}
{{- $pool := include "forebay.onePool" (list $root $where $job.pool) | fromJson -}}
{{- $kafkas = append $kafkas (include "forebay.kafka" (list $root $where $pool.kafka $job.kafka) | fromJson) -}}
{{- end -}}
{{- $kafkas | toJson -}}
{{- end -}}

{{/*
The pool of a job, as JSON: (list $ "jobs.x" "qwen"); it may be left out where there is one pool.
*/}}
{{- define "forebay.onePool" -}}
{{- $pools := include "forebay.pools" (index . 0) | fromJson -}}
{{- $where := index . 1 -}}
{{- $key := index . 2 -}}
{{- if not $key -}}
{{- if ne (len $pools) 1 -}}
{{- fail (printf "%s.pool is missing: give one of %s" $where (keys $pools | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $key = keys $pools | first -}}
{{- end -}}
{{- if not (hasKey $pools $key) -}}
{{- fail (printf "%s.pool is %s, which is no pool: give one of %s" $where $key (keys $pools | sortAlpha | join ", ")) -}}
{{- end -}}
{{- get $pools $key | toJson -}}
{{- end -}}

{{/*
Refuses brokers given to what serves all pools, where pools are on several clusters: (list $ "topics" .Values.topics.kafka).
*/}}
{{- define "forebay.checkServers" -}}
{{- $root := index . 0 -}}
{{- $servers := list -}}
{{- range $key, $pool := include "forebay.pools" $root | fromJson -}}
{{- $servers = append $servers (default $root.Values.kafka.bootstrapServers $pool.kafka.bootstrapServers) -}}
{{- end -}}
{{- if and (index . 2).bootstrapServers (gt (len (uniq $servers)) 1) -}}
{{- fail (printf "%s.kafka.bootstrapServers is given, but pools are on several clusters (%s): leave it out, each pool's own is taken" (index . 1) (uniq $servers | join "; ")) -}}
{{- end -}}
{{- end -}}

{{/*
What serves all pools that have the same kafka, as JSON, component -> that kafka and the pools' keys and names:
(list $ "exporter" .Values.exporter.kafka). One reads one cluster, as one user; so there is one for each kafka that pools
have: `exporter` for the chart's own, else `exporter-` and the first of its pools. Where all pools have the same, it is
`exporter`.
*/}}
{{- define "forebay.byKafka" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $own := index . 2 -}}
{{- include "forebay.checkServers" (list $root $component $own) -}}
{{- $groups := dict -}}
{{- range $key, $pool := include "forebay.pools" $root | fromJson -}}
{{- $kafka := include "forebay.kafka" (list $root (printf "%s, for pools.%s" $component $key) $pool.kafka $own) -}}
{{- $group := get $groups $kafka | default (dict "keys" list "pools" list) -}}
{{- $groups = set $groups $kafka (dict "keys" (append $group.keys $key) "pools" (append $group.pools $pool.name)) -}}
{{- end -}}
{{- $found := dict -}}
{{- range $kafka, $group := $groups -}}
{{- $given := $kafka | fromJson -}}
{{- $isOwn := or (eq (len $groups) 1) (deepEqual $given (mergeOverwrite (deepCopy $root.Values.kafka) (deepCopy $own))) -}}
{{- $name := ternary $component (printf "%s-%s" $component (first $group.keys)) $isOwn -}}
{{- $_ := set $found $name (dict "kafka" $given "keys" $group.keys "pools" $group.pools) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}
