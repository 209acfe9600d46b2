#include "model/weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_set>

#include "base/status.h"

namespace kvasir {
namespace {

constexpr std::uint64_t kAlign = 64;

// One tensor of the model: where it comes from, and which field receives it.
struct Part {
  const gguf::Tensor* tensor = nullptr;
  PackedMatrix* matrix = nullptr;  // or
  const float** vector = nullptr;
  std::uint64_t offset = 0;  // in the allocation
  std::uint64_t bytes = 0;
};

class Layout {
 public:
  Layout(const gguf::File& file, const ModelConfig& config) : file_(file), config_(config) {}

  Status matrix(const std::string& name, int outputs, int inputs, PackedMatrix* to) {
    const gguf::Tensor* tensor = nullptr;
    KVASIR_RETURN_IF_ERROR(
        find(name, {static_cast<std::uint64_t>(inputs), static_cast<std::uint64_t>(outputs)}, &tensor));
    const auto type = dtype_from_gguf(tensor->type);
    if (!type) {
      const auto traits = foreign_dtype(tensor->type);
      return unsupported("tensor {} is of type {}, which is not supported; F32, F16, BF16 and Q8_0 are", name,
                         traits ? traits->name : "unknown");
    }
    *to = PackedMatrix{*type, outputs, inputs, nullptr};
    add({tensor, to, nullptr, 0, packed_bytes(*type, outputs, inputs)});
    return {};
  }

  Status vector(const std::string& name, int length, const float** to) {
    const gguf::Tensor* tensor = nullptr;
    KVASIR_RETURN_IF_ERROR(find(name, {static_cast<std::uint64_t>(length)}, &tensor));
    if (tensor->type != static_cast<std::uint32_t>(DType::kF32))
      return unsupported("tensor {} must be of type F32", name);
    add({tensor, nullptr, to, 0, static_cast<std::uint64_t>(length) * sizeof(float)});
    return {};
  }

  Status all(Weights* weights) {
    const ModelConfig& c = config_;
    KVASIR_RETURN_IF_ERROR(matrix("token_embd.weight", c.vocabulary, c.width, &weights->embedding));
    weights->layers.resize(static_cast<std::size_t>(c.layers));
    const int attention = c.heads * c.head_dim;
    const int kv = c.kv_heads * c.head_dim;
    for (int l = 0; l < c.layers; ++l) {
      LayerWeights& layer = weights->layers[static_cast<std::size_t>(l)];
      const auto name = [&](std::string_view part) { return fmt::format("blk.{}.{}.weight", l, part); };
      KVASIR_RETURN_IF_ERROR(vector(name("attn_norm"), c.width, &layer.attention_norm));
      KVASIR_RETURN_IF_ERROR(matrix(name("attn_q"), attention, c.width, &layer.query));
      KVASIR_RETURN_IF_ERROR(matrix(name("attn_k"), kv, c.width, &layer.key));
      KVASIR_RETURN_IF_ERROR(matrix(name("attn_v"), kv, c.width, &layer.value));
      KVASIR_RETURN_IF_ERROR(matrix(name("attn_output"), c.width, attention, &layer.attention_output));
      KVASIR_RETURN_IF_ERROR(vector(name("ffn_norm"), c.width, &layer.ffn_norm));
      KVASIR_RETURN_IF_ERROR(matrix(name("ffn_gate"), c.ffn, c.width, &layer.gate));
      KVASIR_RETURN_IF_ERROR(matrix(name("ffn_up"), c.ffn, c.width, &layer.up));
      KVASIR_RETURN_IF_ERROR(matrix(name("ffn_down"), c.width, c.ffn, &layer.down));
    }
    KVASIR_RETURN_IF_ERROR(vector("output_norm.weight", c.width, &weights->output_norm));
    if (file_.find_tensor("output.weight") != nullptr)
      KVASIR_RETURN_IF_ERROR(matrix("output.weight", c.vocabulary, c.width, &weights->output));
    known_.insert("rope_freqs.weight");
    for (const gguf::Tensor& tensor : file_.tensors())
      if (known_.find(std::string(tensor.name)) == known_.end())
        return unsupported("tensor {} is not part of a llama model as supported; running without it would be wrong",
                           tensor.name.substr(0, 64));
    return {};
  }

  std::vector<Part>& parts() { return parts_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  Status find(const std::string& name, const std::vector<std::uint64_t>& dims, const gguf::Tensor** out) {
    *out = file_.find_tensor(name);
    if (*out == nullptr) return data_loss("tensor {} is missing: this file holds no whole llama model", name);
    if ((*out)->dims != dims) return data_loss("tensor {} has a shape that contradicts the file's own metadata", name);
    known_.insert(name);
    return {};
  }
  void add(Part part) {
    part.offset = bytes_;
    bytes_ += (part.bytes + kAlign - 1) / kAlign * kAlign;
    parts_.push_back(part);
  }

  const gguf::File& file_;
  const ModelConfig& config_;
  std::unordered_set<std::string> known_;
  std::vector<Part> parts_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

Result<std::uint64_t> Weights::plan_bytes(const gguf::File& file, const ModelConfig& config) {
  std::unique_ptr<Weights> weights(new Weights);
  Layout layout(file, config);
  KVASIR_RETURN_IF_ERROR(layout.all(weights.get()));
  return layout.bytes();
}

Result<std::unique_ptr<Weights>> Weights::load(const gguf::File& file, const ModelConfig& config, ThreadPool& threads,
                                               const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  std::unique_ptr<Weights> weights(new Weights);
  Layout layout(file, config);
  KVASIR_RETURN_IF_ERROR(layout.all(weights.get()));
  void* memory = ::mmap(nullptr, layout.bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return exhausted("the system has no {} bytes for the model's weights; close other programs or use a smaller model",
                     layout.bytes());
  weights->data_ = static_cast<std::byte*>(memory);
  weights->bytes = layout.bytes();
  ::madvise(memory, layout.bytes(), MADV_HUGEPAGE);

  std::uint64_t done = 0;
  for (const Part& part : layout.parts()) {
    std::byte* to = weights->data_ + part.offset;
    if (part.vector != nullptr) {
      std::memcpy(to, part.tensor->bytes.data(), part.bytes);
      *part.vector = reinterpret_cast<const float*>(to);
    } else {
      PackedMatrix& matrix = *part.matrix;
      matrix.data = to;
      constexpr int kPanelsPerTask = 64;
      const int panels = matrix.panels();
      threads.parallel_for((panels + kPanelsPerTask - 1) / kPanelsPerTask, [&](int task) {
        pack_panels(matrix.type, matrix.outputs, matrix.inputs, part.tensor->bytes.data(), task * kPanelsPerTask,
                    std::min(panels, (task + 1) * kPanelsPerTask), to);
      });
    }
    file.release(*part.tensor);
    done += part.bytes;
    if (progress) progress(done, layout.bytes());
  }
  if (weights->output.data == nullptr) weights->output = weights->embedding;
  return weights;
}

Weights::~Weights() {
  if (data_ != nullptr) ::munmap(data_, bytes);
}

}  // namespace kvasir
