{{- define "commwatch.selector" -}}
app.kubernetes.io/name: commwatch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "commwatch.labels" -}}
{{ include "commwatch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "commwatch.serviceAccount" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{- /* commwatch.yaml: what the chart knows, below what the values say. */ -}}
{{- define "commwatch.config" -}}
{{- $own := dict "sources" (dict "kernel_log" (dict "enabled" .Values.privileged)) -}}
{{- if .Values.thresholds }}{{ $_ := set $own "thresholds" "/etc/commwatch/thresholds.yaml" }}{{ end -}}
{{ mergeOverwrite $own (deepCopy .Values.config) | toYaml }}
{{- end }}
