{{- define "commwatch.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Of each resource: the release's name alone where it has the chart's name in it. */ -}}
{{- define "commwatch.fullname" -}}
{{- $name := include "commwatch.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{ .Values.fullnameOverride | default $full | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "commwatch.selector" -}}
app.kubernetes.io/name: {{ include "commwatch.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "commwatch.labels" -}}
{{ include "commwatch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* Of the pod of helm test: other than the selector, or the Service would lead to it. */ -}}
{{- define "commwatch.testLabels" -}}
app.kubernetes.io/name: {{ include "commwatch.name" . | trunc 58 }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "commwatch.image" -}}
{{ required "image.repository: the name of your image, built by packaging/image" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "commwatch.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "commwatch.fullname" .) }}
{{- end }}

{{- /* commwatch.yaml: what the chart knows, below what the values say. */ -}}
{{- define "commwatch.config" -}}
{{- $own := dict "sources" (dict "kernel_log" (dict "enabled" .Values.privileged)) -}}
{{- if .Values.thresholds }}{{ $_ := set $own "thresholds" "/etc/commwatch/thresholds.yaml" }}{{ end -}}
{{ mergeOverwrite $own (deepCopy .Values.config) | toYaml }}
{{- end }}
