// Attention traces as bytes and as files, made without the writer under test.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace kvasir::test {

// A file in .npy format: version `major`.0, the dictionary as it is given, then the floats.
inline std::string npy_bytes(const std::string& dictionary, const std::vector<float>& values, int major = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) bytes += static_cast<char>(dictionary.size() >> (8 * i) & 0xff);
  bytes += dictionary;
  const std::size_t before = bytes.size();
  bytes.resize(before + values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(bytes.data() + before, values.data(), values.size() * sizeof(float));
  return bytes;
}

inline std::string npy_dictionary(const std::string& shape, const std::string& descr = "'<f4'",
                                  const std::string& fortran_order = "False") {
  return "{'descr': " + descr + ", 'fortran_order': " + fortran_order + ", 'shape': " + shape + ", }\n";
}

// weight(layer, head, row, token) for tokens up to the row, and zero beyond.
using WeightOf = std::function<float(int layer, int head, int row, int token)>;

inline std::vector<float> trace_values(int layers, int heads, int tokens, const WeightOf& weight) {
  std::vector<float> values;
  for (int layer = 0; layer < layers; ++layer)
    for (int head = 0; head < heads; ++head)
      for (int row = 0; row < tokens; ++row)
        for (int token = 0; token < tokens; ++token)
          values.push_back(token <= row ? weight(layer, head, row, token) : 0.0F);
  return values;
}

inline std::string trace_bytes(int layers, int heads, int tokens, const WeightOf& weight) {
  const std::string t = std::to_string(tokens);
  return npy_bytes(
      npy_dictionary("(" + std::to_string(layers) + ", " + std::to_string(heads) + ", " + t + ", " + t + ")"),
      trace_values(layers, heads, tokens, weight));
}

// Every row attends to all it sees alike.
inline float uniform_weight(int, int, int row, int) {
  return 1.0F / static_cast<float>(row + 1);
}

// Uneven, the same on every machine, different in every layer, head and row.
inline float uneven_weight(int layer, int head, int row, int token) {
  const auto score = [&](int j) {
    const auto mixed = static_cast<unsigned>((layer * 31 + head) * 257 + row * 17 + j * 101) * 2654435761U;
    return static_cast<float>(1 + (mixed >> 16) % 97);
  };
  float sum = 0;
  for (int j = 0; j <= row; ++j) sum += score(j);
  return score(token) / sum;
}

// Goes away with the object.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvasir-replay-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string path() const { return path_.string(); }
  std::string path(const std::string& name) const { return (path_ / name).string(); }
  std::string make(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  std::string content(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  int files() const {
    return static_cast<int>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator{}));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace kvasir::test
