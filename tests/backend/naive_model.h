// A model that runs on the naive backend, through the engine's own path from there on.
#pragma once

#include "backend/naive_backend.h"
#include "base/status.h"
#include "support/engine_fixture.h"

namespace kvasir::test {

inline Result<std::shared_ptr<LoadedModel>> load_on_naive_backend(const std::string& path,
                                                                  const EngineOptions& options) {
  auto model = std::make_shared<LoadedModel>();
  model->options = options;
  model->threads = std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : 1);
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(path));
  KVASIR_ASSIGN_OR_RETURN(ModelHeader header, read_model_header(file, {}, families_with_decay()));
  model->config = std::move(header.config);
  model->chat = std::move(header.chat);
  model->tokenizer = std::move(header.tokenizer);
  KVASIR_ASSIGN_OR_RETURN(model->kv_shape, kv_cache_shape(model->config, options.kv_type, options.page_slots));
  KVASIR_ASSIGN_OR_RETURN(AdapterFiles adapters, open_adapters(options.lora, model->config, header.weights));
  BackendShape shape = backend_shape(model->config);
  shape.adapter_ranks = adapters.ranks();
  model->backend = std::make_unique<NaiveBackend>(shape);
  KVASIR_RETURN_IF_ERROR(load_weights(file, header.weights, *model->backend, {}));
  for (const AdapterMap& map : adapters.maps) KVASIR_RETURN_IF_ERROR(model->backend->load_adapter(map.parts));
  model->adapters = std::move(adapters.adapters);
  model->weights = std::move(header.weights.weights);
  model->weight_bytes = model->backend->weight_bytes(header.weights.parts);
  model->transformer = std::make_unique<Transformer>(&model->config, &model->weights, model->backend.get());
  return model;
}

inline std::shared_ptr<LoadedModel> load_naive(const std::string& path, EngineOptions options = {}) {
  options.model = path;
  auto model = load_on_naive_backend(path, options);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? *model : nullptr;
}

}  // namespace kvasir::test
