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

// One matrix or vector of the model: where it comes from, and which field receives it.
struct Part {
  const gguf::Tensor* tensor = nullptr;
  RowOrder order;
  PackedMatrix* matrix = nullptr;  // or
  const float** vector = nullptr;
  std::uint64_t offset = 0;  // in the allocation
  std::uint64_t bytes = 0;
};

std::string supported_types() {
  std::string names;
  for (const DType type : all_dtypes()) {
    if (!names.empty()) names += ", ";
    names += dtype_traits(type).name;
  }
  return names;
}

class Layout {
 public:
  Layout(const gguf::File& file, const ModelConfig& config)
      : file_(file), config_(config), architecture_(*config.architecture) {}

  Status all(Weights* weights) {
    const ModelConfig& c = config_;
    KVASIR_RETURN_IF_ERROR(matrix("token_embd.weight", {c.vocabulary, c.width}, &weights->embedding));
    weights->layers.resize(static_cast<std::size_t>(c.layers));
    for (int l = 0; l < c.layers; ++l) {
      LayerWeights& layer = weights->layers[static_cast<std::size_t>(l)];
      const std::string prefix = fmt::format("blk.{}.", l);
      KVASIR_RETURN_IF_ERROR(attention(prefix, &layer));
      KVASIR_RETURN_IF_ERROR(feed_forward(prefix, &layer));
    }
    KVASIR_RETURN_IF_ERROR(norm("output_norm", &weights->output_norm));
    if (file_.find_tensor("output.weight") != nullptr)
      KVASIR_RETURN_IF_ERROR(matrix("output.weight", {c.vocabulary, c.width}, &weights->output));
    known_.insert("rope_freqs.weight");
    for (const gguf::Tensor& tensor : file_.tensors())
      if (known_.find(std::string(tensor.name)) == known_.end())
        return unsupported("tensor {} is not part of a {} model as supported; running without it would be wrong",
                           tensor.name.substr(0, 64), architecture_.name);
    return {};
  }

  std::vector<Part>& parts() { return parts_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  // Which rows of a tensor of `rows` rows (0: as many as outputs) are wanted.
  struct Shape {
    int outputs;
    int inputs;
    int rows = 0;
    RowOrder order{};

    std::uint64_t tensor_rows() const { return static_cast<std::uint64_t>(rows > 0 ? rows : outputs); }
  };

  Status attention(const std::string& prefix, LayerWeights* layer) {
    const ModelConfig& c = config_;
    const int queries = c.heads * c.head_dim;
    const int keys = c.kv_heads * c.head_dim;
    const bool halves = architecture_.pairs == RotaryPairs::kHalves;
    const RowOrder rotated{0, c.head_dim, halves ? c.rope.dims : 0};
    KVASIR_RETURN_IF_ERROR(norm(prefix + "attn_norm", &layer->attention_norm));
    const Presence bias = architecture_.qkv_bias;
    const auto projection = [&](const char* name, int first, int outputs, RowOrder order, Linear* to) {
      if (!architecture_.fused_qkv) return linear(prefix + name, {outputs, c.width, 0, order}, bias, to);
      order.first = first;
      return linear(prefix + "attn_qkv", {outputs, c.width, queries + 2 * keys, order}, bias, to);
    };
    KVASIR_RETURN_IF_ERROR(projection("attn_q", 0, queries, rotated, &layer->query));
    KVASIR_RETURN_IF_ERROR(projection("attn_k", queries, keys, rotated, &layer->key));
    KVASIR_RETURN_IF_ERROR(projection("attn_v", queries + keys, keys, {}, &layer->value));
    if (architecture_.qk_norm != Presence::kNever) {
      KVASIR_RETURN_IF_ERROR(vector(prefix + "attn_q_norm.weight", {c.head_dim, 1, 0, rotated}, &layer->query_norm));
      KVASIR_RETURN_IF_ERROR(vector(prefix + "attn_k_norm.weight", {c.head_dim, 1, 0, rotated}, &layer->key_norm));
    }
    return linear(prefix + "attn_output", {c.width, queries}, architecture_.other_biases, &layer->attention_output);
  }

  Status feed_forward(const std::string& prefix, LayerWeights* layer) {
    const ModelConfig& c = config_;
    const Presence bias = architecture_.other_biases;
    KVASIR_RETURN_IF_ERROR(norm(prefix + "ffn_norm", &layer->ffn_norm));
    if (architecture_.feed_forward == FeedForward::kSwiGlu)
      KVASIR_RETURN_IF_ERROR(linear(prefix + "ffn_gate", {c.ffn, c.width}, bias, &layer->gate));
    KVASIR_RETURN_IF_ERROR(linear(prefix + "ffn_up", {c.ffn, c.width}, bias, &layer->up));
    return linear(prefix + "ffn_down", {c.width, c.ffn}, bias, &layer->down);
  }

  Status norm(const std::string& name, Norm* to) {
    KVASIR_RETURN_IF_ERROR(vector(name + ".weight", {config_.width, 1}, &to->weight));
    if (architecture_.norm == NormKind::kRms) return {};
    return vector(name + ".bias", {config_.width, 1}, &to->bias);
  }

  Status linear(const std::string& name, const Shape& shape, Presence bias, Linear* to) {
    KVASIR_RETURN_IF_ERROR(matrix(name + ".weight", shape, &to->matrix));
    const bool present = file_.find_tensor(name + ".bias") != nullptr;
    if (bias == Presence::kNever || (bias == Presence::kOptional && !present)) return {};
    return vector(name + ".bias", shape, &to->bias);
  }

  Status matrix(const std::string& name, const Shape& shape, PackedMatrix* to) {
    const gguf::Tensor* tensor = nullptr;
    KVASIR_RETURN_IF_ERROR(find(name, {static_cast<std::uint64_t>(shape.inputs), shape.tensor_rows()}, &tensor));
    const auto type = dtype_from_gguf(tensor->type);
    if (!type) {
      const auto traits = foreign_dtype(tensor->type);
      return unsupported("tensor {} is of type {}, which is not supported; supported: {}", name,
                         traits ? traits->name : "unknown", supported_types());
    }
    *to = PackedMatrix{*type, shape.outputs, shape.inputs, nullptr};
    add({tensor, shape.order, to, nullptr, 0, packed_bytes(*type, shape.outputs, shape.inputs)});
    return {};
  }

  Status vector(const std::string& name, const Shape& shape, const float** to) {
    const gguf::Tensor* tensor = nullptr;
    KVASIR_RETURN_IF_ERROR(find(name, {shape.tensor_rows()}, &tensor));
    const auto type = dtype_from_gguf(tensor->type);
    if (!type || is_quantized(*type))
      return unsupported("tensor {} must be of type F32, F16 or BF16; convert the model again", name);
    add({tensor, shape.order, nullptr, to, 0, static_cast<std::uint64_t>(shape.outputs) * sizeof(float)});
    return {};
  }

  Status find(const std::string& name, const std::vector<std::uint64_t>& dims, const gguf::Tensor** out) {
    *out = file_.find_tensor(name);
    if (*out == nullptr)
      return data_loss("tensor {} is missing: this file holds no whole {} model", name, architecture_.name);
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
  const Architecture& architecture_;
  std::unordered_set<std::string> known_;
  std::vector<Part> parts_;
  std::uint64_t bytes_ = 0;
};

void copy_vector(const Part& part, std::byte* to) {
  const auto type = static_cast<DType>(part.tensor->type);
  const std::size_t size = dtype_traits(type).block_bytes;
  for (std::uint64_t i = 0; i < part.bytes / sizeof(float); ++i) {
    const auto row = static_cast<std::size_t>(part.order.row(static_cast<int>(i)));
    const float value = read_element(type, part.tensor->bytes.data() + row * size);
    std::memcpy(to + i * sizeof value, &value, sizeof value);
  }
}

// In slices whose pages are given back as soon as they are packed.
void pack_matrix(const gguf::File& file, const Part& part, ThreadPool& threads, std::byte* to,
                 const std::function<void(std::uint64_t)>& packed) {
  constexpr int kPanelsPerTask = 16;
  constexpr std::uint64_t kSliceBytes = std::uint64_t{32} << 20;
  const PackedMatrix& matrix = *part.matrix;
  const std::uint64_t panel_bytes = matrix.panel_bytes();
  const int slice = static_cast<int>(std::max<std::uint64_t>(kPanelsPerTask, kSliceBytes / panel_bytes));
  for (int begin = 0; begin < matrix.panels(); begin += slice) {
    const int end = std::min(matrix.panels(), begin + slice);
    threads.parallel_for((end - begin + kPanelsPerTask - 1) / kPanelsPerTask, [&](int task) {
      const int first = begin + task * kPanelsPerTask;
      pack_panels(matrix, part.tensor->bytes.data(), part.order, first, std::min(end, first + kPanelsPerTask), to);
    });
    // Rows have the same size packed and in the file. What a row order reaches beyond the slice is read again.
    const std::uint64_t row_bytes = panel_bytes / kPanel;
    file.release(*part.tensor, static_cast<std::uint64_t>(part.order.first + begin * kPanel) * row_bytes,
                 static_cast<std::uint64_t>((end - begin) * kPanel) * row_bytes);
    packed(static_cast<std::uint64_t>(end - begin) * panel_bytes);
  }
}

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
  const auto packed = [&](std::uint64_t bytes) {
    done += bytes;
    if (progress) progress(std::min(done, layout.bytes()), layout.bytes());
  };
  for (const Part& part : layout.parts()) {
    std::byte* to = weights->data_ + part.offset;
    if (part.vector != nullptr) {
      copy_vector(part, to);
      *part.vector = reinterpret_cast<const float*>(to);
      packed(part.bytes);
    } else {
      pack_matrix(file, part, threads, to, packed);
      part.matrix->data = to;
    }
  }
  if (progress) progress(layout.bytes(), layout.bytes());
  if (weights->output.data == nullptr) weights->output = weights->embedding;
  return weights;
}

Weights::~Weights() {
  if (data_ != nullptr) ::munmap(data_, bytes);
}

}  // namespace kvasir
