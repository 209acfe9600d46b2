#!/usr/bin/env python3
"""Speed of OpenVINO GenAI on a GGUF model, as JSON for bench/against.py:

  openvino_bench.py MODEL.gguf [--prefill 512,4096] [--depths 0,4096] [--decode 32] [--batch 0 --batch-prompt 462 --batch-decode 64]
                    [--repeat 3] [--threads 2]

Prints a list of {"test", "tokens", "samples"}: `prefill` and `decode` in tokens/s, behind so many tokens; `batch` is the seconds
that --batch requests at once take. Prompts are random tokens. Needs openvino-genai (PyPI).
"""
import argparse
import json
import random
import time

import numpy
import openvino
import openvino_genai as ov

FIRST_TOKEN, LAST_TOKEN = 256, 30000  # ids that every vocabulary has


def tokens(count, draw):
    return openvino.Tensor(numpy.array([[draw.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(count)]], dtype=numpy.int64))


def generation(count):
    config = ov.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = count
    config.ignore_eos = True
    config.do_sample = False
    return config


def numbers(text):
    return [int(number) for number in text.split(",") if number]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prefill", type=numbers, default=[512])
    parser.add_argument("--depths", type=numbers, default=[0])
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--batch-prompt", type=int, default=462)
    parser.add_argument("--batch-decode", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    draw = random.Random(1)
    results = []
    scheduler = ov.SchedulerConfig()
    scheduler.cache_size = 4
    scheduler.enable_prefix_caching = False
    pipeline = ov.LLMPipeline(options.model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=options.threads)
    pipeline.generate(tokens(16, draw), generation(2))
    for count in options.prefill:
        samples = [1000 * count / pipeline.generate(tokens(count, draw), generation(1)).perf_metrics.get_ttft().mean for _ in range(options.repeat)]
        results.append({"test": "prefill", "tokens": count, "samples": samples})
    for depth in options.depths:
        samples = [1000 / pipeline.generate(tokens(max(depth, 1), draw), generation(options.decode + 1)).perf_metrics.get_tpot().mean
                   for _ in range(options.repeat)]
        results.append({"test": "decode", "tokens": depth, "samples": samples})
    if options.batch > 0:
        del pipeline
        scheduler.max_num_batched_tokens = 512
        batched = ov.ContinuousBatchingPipeline(options.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": options.threads})
        samples = []
        for _ in range(options.repeat + 1):
            prompts = [tokens(options.batch_prompt, draw) for _ in range(options.batch)]
            began = time.monotonic()
            batched.generate(prompts, [generation(options.batch_decode)] * options.batch)
            samples.append(time.monotonic() - began)
        results.append({"test": "batch", "tokens": options.batch_prompt, "samples": samples[1:]})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
