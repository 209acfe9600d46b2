#include "engine/loaded_model.h"

#include <fmt/ranges.h>

#include "base/status.h"
#include "engine/memory_plan.h"
#include "gguf/reader.h"
#include "model/chat_template_from_gguf.h"
#include "model/vocabulary_from_gguf.h"

namespace kvasir {

namespace {

// Of a model whose heads are not known yet.
Result<KvPageShape> page_shape(std::string_view kv_type, int page_slots) {
  const auto type = kv_type_from_name(kv_type);
  if (!type) return invalid_argument("unknown KV type '{}'; the types are: f32, f16, bf16", kv_type);
  if (page_slots != 16 && page_slots != 32 && page_slots != 64)
    return invalid_argument("a page of {} tokens is not possible; choose 16, 32 or 64", page_slots);
  return KvPageShape{0, page_slots, *type};
}

}  // namespace

Status check_chunk(int chunk) {
  if (chunk >= 0 && chunk <= 4096) return {};
  return invalid_argument("chunk={} is outside 1 to 4096 tokens (0: the policy's own)", chunk);
}

Result<KvCacheShape> kv_cache_shape(const ModelConfig& config, std::string_view kv_type, int page_slots) {
  KVASIR_ASSIGN_OR_RETURN(KvPageShape page, page_shape(kv_type, page_slots));
  page.head_dim = config.head_dim;
  return KvCacheShape{config.layers, config.kv_heads, page};
}

Result<ModelHeader> read_model_header(const gguf::File& file, std::string_view chat_template) {
  ModelHeader header;
  KVASIR_ASSIGN_OR_RETURN(header.config, read_model_config(file));
  KVASIR_ASSIGN_OR_RETURN(header.weight_bytes, Weights::plan_bytes(file, header.config));
  KVASIR_ASSIGN_OR_RETURN(Vocabulary vocabulary, vocabulary_from_gguf(file));
  if (vocabulary.pieces.size() != static_cast<std::size_t>(header.config.vocabulary))
    return data_loss("the tokenizer has {} tokens, the embedding {}; convert the model again", vocabulary.pieces.size(),
                     header.config.vocabulary);
  KVASIR_ASSIGN_OR_RETURN(header.chat, chat_template_from_gguf(file, vocabulary, chat_template));
  if (const auto end = header.chat->end_token()) vocabulary.ends.push_back(*end);
  KVASIR_ASSIGN_OR_RETURN(header.tokenizer, make_tokenizer(std::move(vocabulary)));
  return header;
}

Result<std::shared_ptr<LoadedModel>> load_model(const EngineOptions& options,
                                                const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  auto model = std::make_shared<LoadedModel>();
  model->options = options;
  if (options.threads < 0 || options.threads > 1024)
    return invalid_argument("threads={} is outside 0 (one per core) to 1024", options.threads);
  KVASIR_RETURN_IF_ERROR(check_chunk(options.chunk));
  model->kernels = find_kernels(options.isa);
  if (model->kernels == nullptr)
    return invalid_argument("no kernels '{}' on this machine; there are: auto, {}", options.isa,
                            fmt::join(kernel_names(), ", "));
  KVASIR_RETURN_IF_ERROR(page_shape(options.kv_type, options.page_slots).status());

  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(options.model));
  KVASIR_ASSIGN_OR_RETURN(ModelHeader header, read_model_header(file, options.chat_template));
  const std::uint64_t weight_bytes = header.weight_bytes;
  model->config = std::move(header.config);
  model->chat = std::move(header.chat);
  model->tokenizer = std::move(header.tokenizer);
  KVASIR_ASSIGN_OR_RETURN(model->kv_shape, kv_cache_shape(model->config, options.kv_type, options.page_slots));
  if (const std::uint64_t available = available_memory(); weight_bytes > available)
    return exhausted(
        "the model's weights take {} bytes, but only {} bytes of memory are available; use a smaller model or one with "
        "smaller weights (kvasir plan says what each takes), or close other programs",
        weight_bytes, available);
  model->threads = std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : usable_cores());
  KVASIR_ASSIGN_OR_RETURN(model->weights, Weights::load(file, model->config, *model->threads, progress));
  model->transformer =
      std::make_unique<Transformer>(&model->config, model->weights.get(), model->kernels, model->threads.get());
  return model;
}

}  // namespace kvasir
