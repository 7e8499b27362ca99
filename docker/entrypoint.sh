#!/bin/sh
# What the image runs, of the words that it is given:
#
#   knee URL ...                          a command of vllm-harness
#   --master ..., --worker ..., -f ...    options of Locust, as its operator for Kubernetes gives them
#   locust ..., vllm-harness ..., sh      as they are
set -eu

# The API key comes as a file, so that `docker inspect` does not show it.
key=/run/secrets/vllm_api_key
if [ -s "$key" ]; then
  VLLM_API_KEY=$(cat "$key")
  export VLLM_API_KEY
fi

case ${1:-} in
  '' | -h | --help | -V | --version) exec vllm-harness "${@:---help}" ;;
  -*) exec locust "$@" ;;
esac
if command -v "$1" > /dev/null; then
  exec "$@"
fi
exec vllm-harness "$@"
