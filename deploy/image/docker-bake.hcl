// The four images: `docker buildx bake -f deploy/image/docker-bake.hcl` in a checkout. BASE and VLLM_BASE are images by their
// digest. vllm-speculative takes the folders DRAFTER, and TARGET with the target's config.json: docs/deploy.md.
variable "BASE" { default = "" }
variable "VLLM_BASE" { default = "" }
variable "REGISTRY" { default = "localhost" }
variable "VERSION" { default = "0" }
variable "REVISION" { default = "unknown" }
variable "SOURCE_DATE_EPOCH" { default = "0" }
variable "DRAFTER" { default = "build/drafter" }
variable "TARGET" { default = "build/target" }

group "default" { targets = ["gateway", "engine"] }
group "vllm" { targets = ["vllm", "vllm-speculative"] }

target "common" {
  dockerfile = "deploy/image/Dockerfile"
  args       = { BASE = BASE, VERSION = VERSION, REVISION = REVISION, SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH }
}

target "gateway" {
  inherits = ["common"]
  target   = "gateway"
  tags     = ["${REGISTRY}/dovetail-gateway:${VERSION}"]
}

target "engine" {
  inherits = ["common"]
  target   = "engine"
  tags     = ["${REGISTRY}/dovetail-engine:${VERSION}"]
}

target "vllm" {
  inherits = ["common"]
  target   = "vllm"
  args     = { BASE = VLLM_BASE }
  tags     = ["${REGISTRY}/dovetail-vllm:${VERSION}"]
}

target "vllm-speculative" {
  inherits = ["common"]
  target   = "vllm-speculative"
  args     = { BASE = VLLM_BASE }
  contexts = { drafter = DRAFTER, target = TARGET }
  tags     = ["${REGISTRY}/dovetail-vllm-speculative:${VERSION}"]
}
