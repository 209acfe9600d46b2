#!/usr/bin/env python3
"""Serves a GGUF model by OpenVINO GenAI, with its cache eviction, so that `kvasir eval tasks --endpoint` asks it the same questions:

  openvino_server.py MODEL.gguf [--port 8901] [--keep 512] [--start 32] [--recent 128] [--threads 2]

--keep N evicts to N tokens (start + evictable + recent), 0 keeps all. Knows POST /v1/completions with `prompt`, `max_tokens`
and `stop`, greedy. Needs openvino-genai (PyPI). One request at a time.
"""
import argparse
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


def make_pipeline(options):
    import openvino_genai as ov

    scheduler = ov.SchedulerConfig()
    scheduler.cache_size = options.cache_gb
    scheduler.enable_prefix_caching = False
    scheduler.use_cache_eviction = options.keep > 0
    if options.keep > 0:
        scheduler.cache_eviction_config = ov.CacheEvictionConfig(
            options.start, options.recent, options.keep, ov.AggregationMode.NORM_SUM)
    pipeline = ov.LLMPipeline(options.model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=options.threads)
    return ov, pipeline


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8901)
    parser.add_argument("--keep", type=int, default=0)
    parser.add_argument("--start", type=int, default=32)
    parser.add_argument("--recent", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-gb", type=int, default=2)
    options = parser.parse_args()
    ov, pipeline = make_pipeline(options)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            config = ov.GenerationConfig()
            config.max_new_tokens = body.get("max_tokens", 16)
            config.do_sample = False
            config.apply_chat_template = False
            stops = body.get("stop") or []
            config.stop_strings = set([stops] if isinstance(stops, str) else stops)
            text = str(pipeline.generate(body["prompt"], config))
            for stop in config.stop_strings:
                text = text.split(stop)[0]
            data = json.dumps({"choices": [{"text": text, "index": 0}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    print(f"serving {options.model} on port {options.port}, keeping {options.keep or 'all'} tokens", file=sys.stderr, flush=True)
    HTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
