{{- define "quicksilver.name" -}}
{{- printf "%s" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "quicksilver.selector" -}}
app.kubernetes.io/name: quicksilver
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "quicksilver.labels" -}}
{{ include "quicksilver.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "quicksilver.serviceNames" -}}
{{- $name := include "quicksilver.name" . -}}
{{- printf "%s %s.%s %s.%s.svc" $name $name .Release.Namespace $name .Release.Namespace -}}
{{- end }}

{{- define "quicksilver.secret" -}}
{{- .Values.secret.existing | default (include "quicksilver.name" .) -}}
{{- end }}

{{- define "quicksilver.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- define "quicksilver.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "quicksilver.resources" -}}
requests:
  {{- toYaml .Values.resources.requests | nindent 2 }}
limits:
  {{- toYaml .Values.resources.limits | nindent 2 }}
{{- end }}
