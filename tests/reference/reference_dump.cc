// reference_dump DIR: writes random models and what ReferenceModel makes of them, for reference_check.py.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "gguf/reader.h"
#include "reference/reference_model.h"
#include "support/families.h"
#include "support/random_model.h"

namespace kvasir::test {
namespace {

struct Attention {
  int sinks = 0;
  int window = 0;  // 0: everything stays visible
  int every = 1;
  std::vector<int> passes;
};

struct Case {
  std::string name;
  RandomModelSpec spec;
  Attention attention;
};

std::vector<Case> cases() {
  const Attention full;
  std::vector<Case> all;
  for (const char* dtype : {"f32", "f16", "bf16", "q8_0"}) {
    RandomModelSpec spec;
    spec.dtype = dtype;
    all.push_back({dtype, spec, full});
  }
  RandomModelSpec linear;
  linear.rope_scaling = RopeScaling::kLinear;
  linear.tied = false;
  all.push_back({"linear-untied", linear, full});
  RandomModelSpec llama3;
  llama3.rope_scaling = RopeScaling::kLlama3;
  llama3.rope_base = 500000;
  all.push_back({"llama3", llama3, full});
  RandomModelSpec narrow;  // heads that do not add up to d, one key head for all
  narrow.head_dim = 8;
  narrow.kv_heads = 1;
  narrow.layers = 3;
  narrow.seed = 7;
  all.push_back({"narrow-heads", narrow, full});
  for (const FamilyCase& family : family_cases()) {
    all.push_back({family.name, family.spec, full});
    all.push_back({family.name + "-streaming", family.spec, {3, 12, 1, {}}});
  }
  all.push_back({"window", RandomModelSpec{}, {0, 9, 1, {}}});
  all.push_back({"streaming", narrow, {3, 8, 1, {}}});
  all.push_back({"streaming-every-5", llama3, {2, 7, 5, {}}});
  all.push_back({"streaming-passes", RandomModelSpec{}, {4, 12, 4, {7, 20, 1, 6}}});
  return all;
}

void dump(const std::string& dir) {
  nlohmann::json index = nlohmann::json::array();
  for (const Case& one : cases()) {
    const std::vector<std::byte> bytes = make_random_model(one.spec);
    const auto file = gguf::File::parse(bytes);
    KVASIR_CHECK(file.ok());
    const ReferenceModel model(*file);

    std::mt19937 random(42);
    std::vector<int> tokens(48);
    for (int& token : tokens) token = static_cast<int>(random() % static_cast<unsigned>(one.spec.vocab));
    const int n = static_cast<int>(tokens.size());
    const Attention& a = one.attention;
    const auto rows =
        model.logits(tokens, a.window == 0 ? full_views(n) : streaming_views(n, a.sinks, a.window, a.every, a.passes));

    write_bytes(dir + "/" + one.name + ".gguf", bytes);
    std::ofstream out(dir + "/" + one.name + ".logits", std::ios::binary);
    for (const auto& row : rows) {
      out.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size() * sizeof(double)));
    }
    out.close();
    KVASIR_CHECK(!out.fail());
    index.push_back({{"name", one.name},
                     {"tokens", tokens},
                     {"sinks", a.sinks},
                     {"window", a.window},
                     {"every", a.every},
                     {"passes", a.passes}});
  }
  std::ofstream out(dir + "/cases.json");
  out << index;
  out.close();
  KVASIR_CHECK(!out.fail());
}

}  // namespace
}  // namespace kvasir::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: reference_dump DIR\n", stderr);
    return 2;
  }
  kvasir::test::dump(argv[1]);
  return 0;
}
