// kvasir info, tokenize, policies, eval and bench on the small model.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/program.h"
#include "support/gguf_writer.h"
#include "support/random_model.h"

namespace kvasir::test {
namespace {

std::vector<int> parsed_ids(const std::string& text) {
  std::istringstream stream(text);
  std::vector<int> ids;
  for (int id = 0; stream >> id;) ids.push_back(id);
  EXPECT_TRUE(stream.eof()) << text;
  return ids;
}

TEST(Commands, InfoTellsWhatTheFileHolds) {
  const Json json = json_of({"info", model_path(), "--json"});
  EXPECT_EQ(json["version"], 3);
  EXPECT_EQ(json["runs"], true);
  EXPECT_EQ(json["parameters"], 3221952);
  EXPECT_EQ(json["size_bytes"].get<std::uint64_t>(), std::filesystem::file_size(model_path()));
  EXPECT_EQ(json["metadata"]["general.architecture"], "llama");
  EXPECT_EQ(json["metadata"]["llama.context_length"], 2048);
  EXPECT_EQ(json["metadata"]["tokenizer.ggml.tokens"]["count"], 4096);
  EXPECT_EQ(json["chat_template"], "markers");
  EXPECT_EQ(json["chat_template_unknown"], false);
  EXPECT_EQ(json["tensors"].size(), 56u);
  const Finished text = run_program({"info", model_path(), "--tensors"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.err, "");
  for (const char* part : {"Runs here: yes", "llama.context_length", "blk.0.attn_q.weight"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part;
}

// A file that goes away with the object.
class ModelFile {
 public:
  explicit ModelFile(const std::vector<std::byte>& content)
      : path_(::testing::TempDir() + "kvasir-model-" + std::to_string(::getpid())) {
    write_bytes(path_, content);
  }
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;
  ~ModelFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Commands, InfoShowsMetadataAsItIs) {
  gguf::Writer writer;
  writer.set_bool("yes", true);
  writer.set_bool("no", false);
  writer.set_int8("minus", -3);
  writer.set_int32s("ints", {-1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  writer.set_float32s("floats", {0.5F, -2});
  writer.set_strings("strings", {"a", "b\n"});
  const std::string odd = "a\nkey";
  writer.set_uint8(odd, 1);
  const ModelFile file(writer.finish());
  const Json json = json_of({"info", file.path(), "--json"});
  const Json& metadata = json["metadata"];
  EXPECT_EQ(metadata["yes"], Json(true));
  EXPECT_EQ(metadata["no"], Json(false));
  EXPECT_EQ(metadata["minus"], -3);
  EXPECT_EQ(metadata["ints"]["type"], "i32");
  EXPECT_EQ(metadata["ints"]["count"], 10);
  EXPECT_EQ(metadata["ints"]["first"], (Json{-1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(metadata["floats"]["first"], (Json{0.5, -2.0}));
  EXPECT_EQ(metadata["strings"]["first"], (Json{"a", "b\\n"}));
  EXPECT_EQ(metadata[odd], 1);
  EXPECT_EQ(json["runs"], false);
  EXPECT_NE(json["why_not"], "");
  const Finished text = run_program({"info", file.path()});
  EXPECT_EQ(text.exit_code, 0);
  for (const char* part : {"true", "[10 x i32] -1 2 3", "[2 x f32] 0.5 -2.0", "'a'"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
}

TEST(Commands, InfoTakesManyKeys) {
  // Looking for each key among all others would take 32 * 32 times as long for 32 times as many.
  const auto seconds = [](std::uint32_t count) {
    gguf::Writer writer;
    for (std::uint32_t i = 0; i < count; ++i) writer.set_uint32("key." + std::to_string(i), i);
    const ModelFile file(writer.finish());
    const Finished done = run_program({"info", file.path(), "--json"});
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_EQ(Json::parse(done.out, nullptr, false)["metadata"].size(), count);
    return done.cpu_seconds;
  };
  EXPECT_LT(seconds(150000), 32 * std::sqrt(32.0) * seconds(150000 / 32));
}

TEST(Commands, InfoSaysNoWhereRunWouldRefuse) {
  std::vector<std::byte> bytes = make_random_model({});
  EXPECT_EQ(json_of({"info", ModelFile(bytes).path(), "--json"})["runs"], true);
  // The value of tokenizer.ggml.model, behind the key and the two numbers in front of a string.
  const std::string_view key = "tokenizer.ggml.model";
  const auto* chars = reinterpret_cast<const char*>(bytes.data());
  const std::size_t value = std::string_view(chars, bytes.size()).find(key) + key.size() + 12;
  ASSERT_EQ(std::string_view(chars + value, 5), "llama");
  bytes[value] = std::byte{'x'};
  const ModelFile file(bytes);
  const Json json = json_of({"info", file.path(), "--json"});
  EXPECT_EQ(json["runs"], false);
  const std::string why = json["why_not"];
  EXPECT_NE(why.find("tokenizer"), std::string::npos) << why;
  const Finished run = run_program({"run", "-m", file.path(), "-p", "x"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find(why), std::string::npos) << run.err;
}

TEST(Commands, TokenizePrintsIds) {
  const std::string text = "Hello, world!\n  caf\u00e9 \U0001F600\n";
  const auto ids = [&](const Arguments& more, const std::string& input) {
    Arguments arguments = {"tokenize", "-m", model_path(), "--ids"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished done = run_program(arguments, {.input = input});
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_EQ(done.err, "");
    return parsed_ids(done.out);
  };
  const std::vector<int> with_bos = ids({"-p", text}, "");
  ASSERT_GT(with_bos.size(), 5u);
  EXPECT_EQ(with_bos.front(), 1);
  EXPECT_EQ(ids({}, text), with_bos);
  const std::vector<int> without(with_bos.begin() + 1, with_bos.end());
  EXPECT_EQ(ids({"--no-bos", "-p", text}, ""), without);
  EXPECT_EQ(ids({"--no-bos"}, text), without);
  EXPECT_EQ(ids({"--no-bos"}, ""), std::vector<int>());
  const Json json = json_of({"tokenize", "-m", model_path(), "--no-bos", "--json", "-p", text});
  EXPECT_EQ(json["ids"].get<std::vector<int>>(), without);
  EXPECT_EQ(json["count"], without.size());
  EXPECT_EQ(json["pieces"].size(), without.size());
  // As many as a run reads.
  EXPECT_EQ(run_json({"-p", text, "-n", "1"})["prompt_tokens"], with_bos.size());
}

TEST(Commands, PoliciesListsThemAll) {
  const Json json = json_of({"policies", "--json"});
  std::vector<std::string> names;
  for (const Json& policy : json["policies"]) {
    names.push_back(policy["name"]);
    for (const char* field : {"summary", "formula", "reference", "acts"}) EXPECT_NE(policy[field], "") << field;
    if (policy["evaluation_only"].get<bool>()) continue;
    // Their defaults are for larger models: of a longer context, and of more KV heads.
    const std::string spec = names.back() == "cascade"  ? "cascade:size=1024"
                             : names.back() == "synckv" ? "synckv:mem=50%"
                                                        : names.back();
    EXPECT_EQ(run_json({"-p", "Once", "-n", "2", "--kv", spec})["tokens"], 2) << spec;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"full",     "window", "streaming",    "cascade",  "h2o",      "tova",
                                             "lethe",    "snapkv", "pyramidkv",    "cake",     "keydiff",  "lagkv",
                                             "expected", "vase",   "triattention", "rkv",      "matching", "kvzip",
                                             "synckv",   "quest",  "random",       "recompute"}));
  const Finished text = run_program({"policies"});
  EXPECT_EQ(text.exit_code, 0);
  for (const std::string& name : names) EXPECT_NE(text.out.find(name), std::string::npos) << name;
}

TEST(Commands, EvaluationHasTheFieldsOfTheContract) {
  const std::string path = ::testing::TempDir() + "kvasir-eval-" + std::to_string(::getpid());
  std::ofstream(path) << some_text(600);
  const Arguments base = {"eval", "ppl", "-m", model_path(), "-f", path, "-t", "1", "--tokens", "400"};
  Arguments arguments = base;
  for (const char* policy : {"full", "streaming:sinks=4,window=60", "window:size=64", "recompute:size=64,stride=20"})
    arguments.insert(arguments.end(), {"--kv", policy});
  const Finished table = run_program(arguments);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  // A header and four runs; a header and the differences of two, since `recompute` scores other tokens than the first.
  EXPECT_EQ(std::ranges::count(table.out, '\n'), 8) << table.out;
  arguments.emplace_back("--json");
  const Json json = json_of(arguments);
  ASSERT_EQ(json["runs"].size(), 4u);
  for (const Json& run : json["runs"]) {
    SCOPED_TRACE(run.dump());
    EXPECT_EQ(run["codec"], "f16");
    EXPECT_NEAR(run["ppl"].get<double>(), std::exp(run["nll"].get<double>()), 1e-6 * run["ppl"].get<double>());
    EXPECT_GT(run["nll"].get<double>(), 0);
    EXPECT_GT(run["kv_bytes_peak"].get<std::int64_t>(), 0);
    EXPECT_GT(run["tpot_ms"].get<double>(), 0);
    EXPECT_GT(run["cache_op_ms"].get<double>(), 0);
  }
  const Json& runs = json["runs"];
  EXPECT_EQ(runs[0]["policy"], "full");
  EXPECT_EQ(runs[0]["tokens"], 399);
  EXPECT_EQ(runs[0]["kept_max"], 400);
  EXPECT_EQ(runs[1]["policy"], "streaming:sinks=4,window=60");
  EXPECT_EQ(runs[1]["kept_max"], 65);
  EXPECT_EQ(runs[2]["kept_max"], 65);
  EXPECT_EQ(runs[3]["policy"], "recompute:size=64,stride=20");
  EXPECT_EQ(runs[3]["tokens"], 20);
  EXPECT_EQ(runs[3]["kept_max"], 64);
  const Json planned = json_of({"plan", "-m", model_path(), "--ctx", "400", "--prompt", "0", "--kv", "full", "--json"});
  EXPECT_EQ(runs[0]["kv_bytes_peak"], planned["kv_bytes"]);

  // In chunks and in one token at a time: the same number; in windows: their second halves.
  Arguments chunked = base;
  chunked.insert(chunked.end(), {"--chunk", "64", "--json"});
  EXPECT_EQ(json_of(chunked)["runs"][0]["nll"], runs[0]["nll"]);
  Arguments windows = base;
  windows.insert(windows.end(), {"--window", "100", "--json"});
  EXPECT_EQ(json_of(windows)["runs"][0]["tokens"], 4 * 49);
  std::filesystem::remove(path);
}

TEST(Commands, BenchMeasures) {
  const Json json = json_of({"bench", "-m", model_path(), "-t", "1", "--prefill", "40", "--decode", "3", "--depth",
                             "0,70", "--repeat", "2", "--json"});
  EXPECT_EQ(json["threads"], 1);
  EXPECT_GT(json["read_gigabytes_per_s"].get<double>(), 0.1);
  ASSERT_EQ(json["figures"].size(), 4u);
  for (const Json& figure : json["figures"]) {
    EXPECT_GT(figure["lowest"].get<double>(), 0);
    EXPECT_LE(figure["lowest"], figure["tokens_per_s"]);
    EXPECT_LE(figure["tokens_per_s"], figure["highest"]);
  }
  EXPECT_EQ(json["figures"][0]["test"], "prefill");
  for (const int behind : {1, 3}) {
    EXPECT_EQ(json["figures"][behind]["test"], behind == 1 ? "prefill" : "decode");
    EXPECT_EQ(json["figures"][behind]["depth"], 70);
    EXPECT_EQ(json["figures"][behind]["kv_bytes"], 70 * 2304);
  }
  EXPECT_EQ(run_program({"bench", "-m", model_path(), "-t", "1", "--prefill", "8", "--decode", "0", "--repeat", "1"})
                .exit_code,
            0);
}

// Decoding reads an embedding that is the output too in whole, and of another one a row.
TEST(Commands, BenchCountsWhatATokenReads) {
  for (const bool tied : {true, false}) {
    const RandomModelSpec spec{.tied = tied};
    const ModelFile file(make_random_model(spec));
    const Json figure = json_of({"bench", "-m", file.path(), "-t", "1", "--prefill", "0", "--decode", "3", "--depth",
                                 "20", "--repeat", "1", "--json"})["figures"][0];
    const auto weights = json_of({"plan", "-m", file.path(), "--json"})["weight_bytes"].get<double>();
    const double read = figure["gigabytes_per_s"].get<double>() * 1e9 / figure["tokens_per_s"].get<double>();
    const double embedding = tied ? 0 : 4.0 * spec.vocab * spec.d;
    EXPECT_NEAR(read, weights - embedding + figure["kv_bytes"].get<double>(), 1) << tied;
  }
}

// What a policy chooses to read of what it holds is not known.
TEST(Commands, BenchKnowsNoBytesOfAPolicyThatSelects) {
  const ModelFile file(make_random_model({}));
  const Json bench = json_of({"bench", "-m", file.path(), "-t", "1", "--prefill", "0", "--decode", "3", "--depth", "20",
                              "--repeat", "1", "--kv", "full", "--kv", "quest:budget=64", "--json"});
  EXPECT_GT(bench["figures"][0]["gigabytes_per_s"], 0);
  EXPECT_EQ(bench["figures"][1]["gigabytes_per_s"], 0);
}

// Of eight experts a token reads two. A batch may read them all.
TEST(Commands, BenchCountsTheExpertsThatATokenReads) {
  const std::string path = std::string(std::getenv("KVASIR_SOURCE_DIR")) + "/tests/reference/originals/mixtral.gguf";
  const Json bench = json_of({"bench", "-m", path, "-t", "1", "--prefill", "0", "--decode", "3", "--depth", "20",
                              "--batch", "1,2", "--repeat", "1", "--json"});
  const Json& figure = bench["figures"][0];
  const auto weights = json_of({"plan", "-m", path, "--json"})["weight_bytes"].get<double>();
  const double read = figure["gigabytes_per_s"].get<double>() * 1e9 / figure["tokens_per_s"].get<double>();
  constexpr double kLayers = 3, kMatrices = 3, kExpert = 2.0 * 64 * 32, kEmbedding = 2.0 * 64 * 96;  // bytes of F16
  EXPECT_NEAR(read, weights - kLayers * kMatrices * 6 * kExpert - kEmbedding + figure["kv_bytes"].get<double>(), 1);
  EXPECT_EQ(bench["figures"][1]["gigabytes_per_s"], 0);
}

TEST(Commands, HelpAndVersion) {
  EXPECT_EQ(run_program({"--version"}).out.substr(0, 7), "kvasir ");
  for (const char* command : {"run", "eval", "bench", "plan", "policies", "info", "tokenize"}) {
    const Finished done = run_program({command, "--help"});
    EXPECT_EQ(done.exit_code, 0);
    EXPECT_NE(done.out.find("--help"), std::string::npos) << command;
    EXPECT_EQ(done.err, "");
  }
  for (const char* kind : {"ppl", "needle", "restream"}) {
    const Finished done = run_program({"eval", kind, "--help"});
    EXPECT_EQ(done.exit_code, 0);
    EXPECT_NE(done.out.find("--kv"), std::string::npos) << kind;
  }
}

}  // namespace
}  // namespace kvasir::test
