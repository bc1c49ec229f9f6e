{{/*
The rules of rules/forebay.yaml.in for this release's pools.
*/}}

{{/*
A pool's numbers for alerts as JSON, <name> in the rules -> its text. 0 seconds, where none are promised, are never reached.
*/}}
{{- define "forebay.alertNumbers" -}}
{{- $numbers := dict -}}
{{- range $name, $value := omit .alerts "disabled" "for" "keepFiringFor" -}}
{{- if kindIs "map" $value -}}
{{- range $part, $number := $value -}}
{{- $_ := set $numbers (printf "%s.%s" $name $part) (ternary (toJson $number) "Inf" (gt (float64 $number) 0.0)) -}}
{{- end -}}
{{- else -}}
{{- $_ := set $numbers $name (toJson $value) -}}
{{- end -}}
{{- end -}}
{{- $numbers | toJson -}}
{{- end -}}

{{/*
Pools by what they have in common, as JSON: a list of `alerts`, their numbers, the pools that have them, of these the ones
that KEDA scales (by its object's name) and the most workers of those that scale.
*/}}
{{- define "forebay.alertSets" -}}
{{- $root := . -}}
{{- $sets := dict -}}
{{- if .Values.prometheusRule.everyPool -}}
{{- $default := .Values.poolDefaults -}}
{{- $_ := set $sets (toJson $default.alerts) (dict "numbers" (include "forebay.alertNumbers" $default | fromJson) "alerts" $default.alerts "others" true "pools" list "scaled" dict "most" dict) -}}
{{- end -}}
{{- range $key, $pool := include "forebay.pools" . | fromJson -}}
{{- $text := toJson $pool.alerts -}}
{{- $set := get $sets $text | default (dict "numbers" (include "forebay.alertNumbers" $pool | fromJson) "alerts" $pool.alerts "pools" list "scaled" dict "most" dict) -}}
{{- $_ := set $set "pools" (append $set.pools $pool.name) -}}
{{- if ne $pool.autoscaling.kind "none" -}}
{{- $_ := set $set.most $pool.name (include "forebay.replicasMax" $pool) -}}
{{- end -}}
{{- if eq $pool.autoscaling.kind "keda" -}}
{{- $_ := set $set.scaled (include "forebay.name" (list $root "worker" $key)) $pool.name -}}
{{- end -}}
{{- $_ := set $sets $text $set -}}
{{- end -}}
{{- values $sets | toJson -}}
{{- end -}}

{{/*
More about a set's pools that scale: whether they have as many workers as the chart lets them: (list $ $set).
*/}}
{{- define "forebay.orAtMaximum" -}}
{{- $root := first . -}}
{{- range $pool, $most := (index . 1).most -}}
{{- printf "\n            or max by (<by>) (forebay_workers{%s}) >= %s" (include "forebay.poolSelector" (list $root "=" (list $pool))) $most -}}
{{- end -}}
{{- end -}}

{{/*
How often KEDA failed to read the triggers of a set's pools: (list $ $set). Its metrics know ScaledObjects and no pools,
and where its own namespace is in `namespace`, that of the ScaledObject is in `exported_namespace`.
*/}}
{{- define "forebay.scalerFailures" -}}
{{- $root := first . -}}
{{- $set := index . 1 -}}
{{- $names := keys $set.scaled | sortAlpha -}}
{{- $selector := printf "scaledObject=~\"%s\", exported_namespace=~\"|%s\"" (join "|" $names) $root.Release.Namespace -}}
{{- if $set.others -}}{{- $selector = "scaledObject=~\"(.+-)?worker-.+\"" -}}{{- end -}}
{{- $labels := append $root.Values.prometheusRule.aggregateBy "exported_namespace, scaledObject" | join ", " -}}
{{- $parts := list -}}
{{- range list "keda_scaler_detail_errors_total" "keda_scaled_object_errors_total" -}}
{{- $parts = append $parts (printf "sum by (%s) (increase(%s{%s}[10m])) >= <scalerFailures>" $labels . $selector) -}}
{{- end -}}
{{- $expr := printf "label_replace(%s, \"namespace\", \"$1\", \"exported_namespace\", \"(.+)\")" (join " or " $parts) -}}
{{- if $set.others -}}
{{- $expr = printf "label_replace(%s, \"pool\", \"$1\", \"scaledObject\", \"(?:.+-)?worker-(.+)\")" $expr -}}
{{- end -}}
{{- range $names -}}
{{- $expr = printf "label_replace(%s, \"pool\", %q, \"scaledObject\", %q)" $expr (get $set.scaled .) . -}}
{{- end -}}
{{- $expr -}}
{{- end -}}

{{/*
What selects pools by name and the series by prometheusRule.matchLabels: (list $ "=~" (list "qwen")); empty for every series.
*/}}
{{- define "forebay.poolSelector" -}}
{{- $matchers := list -}}
{{- with index . 2 -}}
{{- $matchers = append $matchers (printf "pool%s\"%s\"" (index $ 1) (sortAlpha . | join "|")) -}}
{{- end -}}
{{- range $label, $value := (first .).Values.prometheusRule.matchLabels -}}
{{- $matchers = append $matchers (printf "%s=%q" $label $value) -}}
{{- end -}}
{{- join ", " $matchers -}}
{{- end -}}

{{/*
The rule file's text: (dict "root" $ "select" a selector "numbers" of forebay.alertNumbers "scalerFailures" and
"orAtMaximum" expressions).
*/}}
{{- define "forebay.rulesText" -}}
{{- $text := .root.Files.Get "rules/forebay.yaml.in" -}}
{{- $text = regexReplaceAll "(?m)^ *#.*$" $text "" -}}
{{- if .select -}}
{{- $text = replace "<pools>" .select $text -}}
{{- else -}}
{{- $text = replace "{<pools>, " "{" (replace "{<pools>}" "" $text) -}}
{{- end -}}
{{- $text = replace "<orAtMaximum>" (default "" .orAtMaximum) $text -}}
{{- $text = replace "<by>" (join ", " (append .root.Values.prometheusRule.aggregateBy "pool")) $text -}}
{{- $text = replace "<scalerFailuresExpression>" (default "vector(0)" .scalerFailures) $text -}}
{{- range $name, $number := .numbers -}}
{{- $text = replace (printf "<%s>" $name) $number $text -}}
{{- end -}}
{{- with regexFind "<[A-Za-z][A-Za-z.]*>" $text -}}
{{- fail (printf "rules/forebay.yaml.in has %s, which is no value of poolDefaults.alerts" .) -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/*
The groups as JSON: recorded series for all pools, alerts for each set of pools with the same numbers.
*/}}
{{- define "forebay.ruleGroups" -}}
{{- $root := . -}}
{{- $rule := .Values.prometheusRule -}}
{{- $sets := include "forebay.alertSets" . | fromJsonArray -}}
{{- $named := list -}}
{{- range $sets -}}{{- $named = concat $named .pools -}}{{- end -}}
{{- $all := ternary list $named (default false $rule.everyPool) -}}
{{- $groups := list -}}
{{- $text := include "forebay.rulesText" (dict "root" $root "select" (include "forebay.poolSelector" (list $root "=~" $all)) "numbers" (first $sets).numbers) -}}
{{- range (fromYaml $text).groups -}}
{{- $records := list -}}
{{- range .rules -}}{{- if .record -}}{{- $records = append $records . -}}{{- end -}}{{- end -}}
{{- if $records -}}{{- $groups = append $groups (dict "name" .name "rules" $records) -}}{{- end -}}
{{- end -}}
{{- range $set := $sets -}}
{{- $selector := include "forebay.poolSelector" (list $root "=~" $set.pools) -}}
{{- if $set.others -}}
{{- /* Whatever pool there is, but those that have numbers of their own. */ -}}
{{- $own := list -}}
{{- range $sets -}}{{- if not .others -}}{{- $own = concat $own .pools -}}{{- end -}}{{- end -}}
{{- $selector = include "forebay.poolSelector" (list $root "!~" $own) -}}
{{- end -}}
{{- $text := include "forebay.rulesText" (dict "root" $root "select" $selector "numbers" $set.numbers "scalerFailures" (include "forebay.scalerFailures" (list $root $set)) "orAtMaximum" (include "forebay.orAtMaximum" (list $root $set))) -}}
{{- $disabled := mergeOverwrite (deepCopy $rule.disabled) $set.alerts.disabled -}}
{{- /* Who is not there cannot be missed. */ -}}
{{- if not $root.Values.exporter.enabled -}}{{- $_ := set $disabled "ForebayExporterGone" true -}}{{- end -}}
{{- if not (or $set.scaled $set.others) -}}{{- $_ := set $disabled "ForebayScalerFailing" true -}}{{- end -}}
{{- range (fromYaml $text).groups -}}
{{- $alerts := list -}}
{{- range $alert := .rules -}}
{{- if and .alert (not (get $disabled (default "" .alert))) -}}
{{- $_ := set $alert "labels" (mergeOverwrite (deepCopy $rule.alertLabels) .labels) -}}
{{- if $rule.runbookUrl -}}
{{- $_ := set .annotations "runbook_url" (printf "%s/%s" (trimSuffix "/" $rule.runbookUrl) .annotations.runbook_url) -}}
{{- end -}}
{{- with get $set.alerts.for .alert -}}{{- $_ := set $alert "for" . -}}{{- end -}}
{{- with get $set.alerts.keepFiringFor .alert -}}{{- $_ := set $alert "keep_firing_for" . -}}{{- end -}}
{{- $alerts = append $alerts . -}}
{{- end -}}
{{- end -}}
{{- if $alerts -}}
{{- $name := ternary .name (printf "%s-%s" .name (ternary "*" (first (sortAlpha (append $set.pools "~"))) (default false $set.others))) (eq (len $sets) 1) -}}
{{- $groups = append $groups (dict "name" $name "rules" $alerts) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $groups | toJson -}}
{{- end -}}

{{/*
Refuses names of alerts that there are not: (list $ "prometheusRule.disabled" a map by names).
*/}}
{{- define "forebay.checkAlerts" -}}
{{- $alerts := list -}}
{{- range regexFindAll "(?m)^ *- alert: .+$" ((first .).Files.Get "rules/forebay.yaml.in") -1 -}}
{{- $alerts = append $alerts (splitList ": " . | last) -}}
{{- end -}}
{{- $where := index . 1 -}}
{{- range $name, $_ := index . 2 -}}
{{- if not (has $name $alerts) -}}
{{- fail (printf "%s.%s is no alert: give one of %s" $where $name ($alerts | uniq | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
