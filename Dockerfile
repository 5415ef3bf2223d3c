# One image for every service: `docker build -t headway .`, then `python -m services.<name>`.
# By digest: --build-arg BASE=python:3.11-slim@sha256:… (docs/security.md).
ARG BASE=python:3.11-slim
FROM $BASE
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/headway

# Workers build their kernels for the processor they run on; Triton needs a compiler, too.
RUN command -v g++ >/dev/null \
    || { apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*; }

# Dependencies first: this layer stays while only the code changes. Each file has to have its hash
# (`make lock`), but for torch: TORCH picks its build. A plain one has CUDA (5 GB); for another give
# `torch @ URL` of its wheel.
COPY pyproject.toml constraints.txt requirements.lock README.md ./
ARG TORCH=torch
RUN pip install -c constraints.txt "$TORCH" \
    && pip install --require-hashes --no-deps -r requirements.lock

COPY protos protos
COPY headway headway
COPY services services
COPY models models
COPY results results
COPY bench bench
COPY studies studies
COPY planning planning
COPY proof proof
COPY cli cli
COPY headway_launch.py ./
RUN pip install --no-deps --no-build-isolation . \
    && useradd --create-home --uid 10001 headway \
    && mkdir -p /home/headway/.cache/huggingface \
    && install -d -m 0700 -o headway /etc/headway/tls /etc/headway/certs \
    && for role in authority gateway scheduler worker predictor autoscaler supervisor operator client; \
    do install -d -m 0700 -o headway "/etc/headway/certs/$role"; done \
    && chown -R headway /home/headway/.cache
USER headway
ENV HF_HOME=/home/headway/.cache/huggingface TRITON_CACHE_DIR=/tmp/triton
EXPOSE 8000 50051
CMD ["python", "-m", "services.gateway"]
