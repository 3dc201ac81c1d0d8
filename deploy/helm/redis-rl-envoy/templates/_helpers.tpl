{{- define "redis-rl-envoy.name" -}}
{{ .Values.fullnameOverride | default .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "redis-rl-envoy.selector" -}}
app.kubernetes.io/name: redis-rl-envoy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "redis-rl-envoy.metadata" -}}
name: {{ include "redis-rl-envoy.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "redis-rl-envoy.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
