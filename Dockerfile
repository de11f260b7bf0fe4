# tvmtune for CPUs, with the runtimes to compare with.
#
#   docker build -t tvmtune .
#   docker run --rm -v "$PWD:/work" tvmtune tune resnet-18 --trials 200 --vs onnxruntime -o resnet-18.so
FROM python:3.11-slim-bookworm

# A linker is all that libraries need; g++ is for the OpenCL runtime and for torch.compile.
RUN apt-get update \
 && apt-get install -y --no-install-recommends binutils \
 && rm -rf /var/lib/apt/lists/*

COPY . /src
RUN pip install --no-cache-dir '/src[peers]' && rm -rf /src

WORKDIR /work
ENTRYPOINT ["tvmtune"]
CMD ["--help"]
