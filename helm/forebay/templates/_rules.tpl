{{/*
The rule file with the values' thresholds in place of its own, which are the defaults. Each must be found where it is
meant to be: a rule that was rewritten makes this fail instead of keeping its own number.
*/}}
{{- define "forebay.rules" -}}
{{- $thresholds := .Values.prometheusRule.thresholds -}}
{{- $rules := .Files.Get "rules/forebay.yaml" -}}
{{- range $change := list
  (list "p95{tier=\"high\"} > 3\n" "p95{tier=\"high\"} > %v\n" $thresholds.endToEndSeconds)
  (list "(3s are promised)" "(%vs are promised)" $thresholds.endToEndSeconds)
  (list "deadline_risk:ratio > 0.7\n" "deadline_risk:ratio > %v\n" $thresholds.backlogRatio)
  (list "(70% is the bound)" "(%v%% is the bound)" (mulf $thresholds.backlogRatio 100))
  (list "oldest_age:ratio{tier=~\"high|mid\"} > 0.7\n" "oldest_age:ratio{tier=~\"high|mid\"} > %v\n" $thresholds.oldestAgeRatio)
  (list "oldest_age:ratio{tier=\"low\"} > 0.7\n" "oldest_age:ratio{tier=\"low\"} > %v\n" $thresholds.oldestAgeRatio)
  (list "forebay:dead_lettered:increase10m >= 10\n" "forebay:dead_lettered:increase10m >= %v\n" $thresholds.deadLetters)
  (list "(abs(forebay_clock_skew_seconds)) > 1\n" "(abs(forebay_clock_skew_seconds)) > %v\n" $thresholds.clockSkewSeconds)
-}}
{{- $found := index $change 0 -}}
{{- if not (contains $found $rules) -}}
{{- fail (printf "rules/forebay.yaml does not hold %q any more: adapt templates/_rules.tpl" $found) -}}
{{- end -}}
{{- $rules = replace $found (printf (index $change 1) (index $change 2)) $rules -}}
{{- end -}}
{{- $rules -}}
{{- end -}}
