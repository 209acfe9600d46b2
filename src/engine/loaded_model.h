// A model ready to run: header, tokenizer, weights, kernels, threads. Shared by everything that runs it.
// Thread-safety: one caller at a time (the transformer has one workspace).
#pragma once

#include <functional>
#include <memory>

#include "base/thread_pool.h"
#include "gguf/reader.h"
#include "kernels/kernels.h"
#include "kv/kv_cache.h"
#include "kvasir/options.h"
#include "kvasir/status.h"
#include "model/config.h"
#include "model/transformer.h"
#include "model/weights.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir {

struct LoadedModel {
  EngineOptions options;
  ModelConfig config;
  KvCacheShape kv_shape;
  const KernelTable* kernels = nullptr;
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<Transformer> transformer;
};

// All that a file says of its model, checked, but for the weights themselves.
struct ModelHeader {
  ModelConfig config;
  std::unique_ptr<ChatTemplate> chat;
  std::unique_ptr<Tokenizer> tokenizer;
  std::uint64_t weight_bytes = 0;  // that loading would allocate
};

// `chat_template`: in place of the file's own, unless empty. Errors: those of the file.
Result<ModelHeader> read_model_header(const gguf::File& file, std::string_view chat_template = {});

// Checks every option before any work. Errors: kInvalidArgument naming the option, and those of the file.
Result<std::shared_ptr<LoadedModel>> load_model(const EngineOptions& options,
                                                const std::function<void(std::uint64_t, std::uint64_t)>& progress);

// Errors: kInvalidArgument unless `chunk` is a number of tokens per forward pass that the engine takes, or 0.
Status check_chunk(int chunk);

// The page shape that options ask of a model. Errors: kInvalidArgument.
Result<KvCacheShape> kv_cache_shape(const ModelConfig& config, std::string_view kv_type, int page_slots);

}  // namespace kvasir
