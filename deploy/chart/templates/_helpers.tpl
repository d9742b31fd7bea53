{{- define "dovetail.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "dovetail.labels" -}}
app.kubernetes.io/name: dovetail
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "dovetail.select" -}}
app.kubernetes.io/name: dovetail
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "dovetail.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "dovetail.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* The folders that gateway and vLLM read, as volumes and as mounts. */ -}}
{{- define "dovetail.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.model.claim }}
- name: model
  persistentVolumeClaim: {claimName: {{ .Values.model.claim }}, readOnly: true}
{{- else if .Values.model.image }}
- name: model
  image: {reference: {{ .Values.model.image | quote }}, pullPolicy: IfNotPresent}
{{- end }}
{{- end }}

{{- define "dovetail.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if or .Values.model.claim .Values.model.image }}
- {name: model, mountPath: /model, readOnly: true}
{{- end }}
{{- end }}

{{- define "dovetail.hubToken" -}}
{{- with .Values.model.hubSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: hf-token}}
{{- end }}
{{- end }}

{{- /* What the schema of the values cannot say. */ -}}
{{- define "dovetail.check" -}}
{{- if and .Values.model.claim .Values.model.image }}
{{- fail "model.claim and model.image are both set: the model comes from one of them" }}
{{- end }}
{{- if and (or .Values.model.claim .Values.model.image) (not (hasPrefix "/model" .Values.model.name)) }}
{{- fail (printf "model.name is %s: with model.claim or model.image it is /model, or a folder below" .Values.model.name) }}
{{- end }}
{{- if and (hasPrefix "/" .Values.model.name) (not (or .Values.model.claim .Values.model.image)) }}
{{- fail (printf "model.name is the path %s: set model.claim or model.image, which is mounted at /model" .Values.model.name) }}
{{- end }}
{{- if and (or .Values.model.image .Values.drafter.image) (semverCompare "<1.33-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "model.image and drafter.image need Kubernetes 1.33 (image volumes), and this is %s: use model.claim, and an image vllm-speculative" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if gt (int .Values.gateway.replicas) (int .Values.gateway.autoscaling.maxReplicas) }}
{{- if .Values.gateway.autoscaling.enabled }}
{{- fail "gateway.replicas is above gateway.autoscaling.maxReplicas" }}
{{- end }}
{{- end }}
{{- end }}
