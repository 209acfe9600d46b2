// Little memory: `info`, `plan` and `run` agree about it, and nothing is killed.
#include <fmt/core.h>
#include <sys/stat.h>

#include "cli/program.h"
#include "support/mebibyte.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

// `threads`: 0 for the default, which is what `info` and `plan` assume.
void expect_agreement(const std::string& model, const Surroundings& tight, std::uint64_t limit, int threads = 1) {
  const Json memory = json_of({"info", model, "--json"}, tight)["memory"];
  const std::uint64_t available = memory["available_bytes"];
  EXPECT_LT(available, limit);
  EXPECT_GT(available, limit / 2);
  for (const std::string policy :
       {"full", "", "streaming:cap=1000", "h2o:budget=512,recent=256", "snapkv:budget=512"}) {
    SCOPED_TRACE(policy);
    Arguments planned = {"plan", "-m", model, "--ctx", "1500", "--prompt", "600", "--json"};
    Arguments run = {"run", "-m", model, "-p", some_text(600), "-n", "4", "--ignore-eos", "--json"};
    if (threads > 0) run.insert(run.end(), {"-t", std::to_string(threads)});
    if (!policy.empty()) planned.insert(planned.end(), {"--kv", policy});
    if (!policy.empty()) run.insert(run.end(), {"--kv", policy});
    const Json plan = json_of(planned, tight);
    const Finished done = run_program(run, tight);
    EXPECT_EQ(done.signal, 0) << done.err;
    EXPECT_EQ(plan["run_refuses"].is_null(), done.exit_code == 0) << plan["run_refuses"] << done.err;
    if (done.exit_code != 0) {
      EXPECT_EQ(done.exit_code, 1) << done.err;
      continue;
    }
    const Json result = Json::parse(done.out);
    EXPECT_LT(result["kv"]["budget"].get<std::uint64_t>(), available);
    EXPECT_LE(result["kv"]["bytes_peak"], result["kv"]["budget"]);
    if (policy == "full" && memory["fits"].get<bool>()) {
      EXPECT_EQ(result["kv"]["budget"], memory["kv_bytes"]);
    }
    EXPECT_LT(done.peak_bytes, limit);
  }
}

// As under `ulimit -v`.
class LittleMemory : public testing::Test {
 protected:
  void SetUp() override {
#ifdef KVASIR_SANITIZED
    GTEST_SKIP() << "a sanitizer's shadow memory is larger than these limits";
#endif
  }
};

TEST_F(LittleMemory, LimitOnAddressSpace) {
  for (const std::uint64_t limit : {96 * kMiB, 128 * kMiB, 256 * kMiB, 1024 * kMiB}) {
    SCOPED_TRACE(limit);
    Surroundings tight;
    tight.address_space_limit = limit;
    expect_agreement(model_path(), tight, limit, 1);
    expect_agreement(model_path(), tight, limit, 0);
    // Too much is asked for: noted, and refused where the system does not give it.
    const Finished noted = run_model({"-p", "Once", "-n", "1", "--kv-memory", std::to_string(limit)}, tight);
    EXPECT_EQ(noted.signal, 0);
    EXPECT_NE(noted.err.find("is more than the"), std::string::npos) << noted.err;
  }
}

// Hardly more than the program itself maps. What the threads' stacks take counts too.
TEST_F(LittleMemory, LimitCloseToTheWeights) {
  int ran = 0;
  int refused = 0;
  for (const std::uint64_t kib : {29000, 29500, 32000, 36000, 48000, 54000, 68000}) {
    Surroundings tight;
    tight.address_space_limit = kib * 1024;
    for (const int threads : {0, 1, 2, 4}) {
      for (const std::string policy : {"", "full", "streaming:cap=500"}) {
        SCOPED_TRACE(fmt::format("{} KiB, {} threads, {}", kib, threads, policy));
        Arguments planned = {"plan", "-m", model_path(), "--ctx", "1500", "--prompt", "600", "--json"};
        Arguments run = {"run", "-m", model_path(), "-p", some_text(600), "-n", "4", "--ignore-eos", "--json"};
        if (!policy.empty()) planned.insert(planned.end(), {"--kv", policy});
        if (!policy.empty()) run.insert(run.end(), {"--kv", policy});
        if (threads > 0) run.insert(run.end(), {"-t", std::to_string(threads)});
        const Finished done = run_program(run, tight);
        EXPECT_EQ(done.signal, 0) << done.err;
        (done.exit_code == 0 ? ran : refused)++;
        if (done.exit_code != 0) {
          EXPECT_EQ(done.exit_code, 1) << done.err;
          EXPECT_EQ(done.error_lines(), 1) << done.err;
          EXPECT_NE(done.err.find(" bytes"), std::string::npos) << "names no figures: " << done.err;
          EXPECT_EQ(done.err.find("the system"), std::string::npos) << "was admitted: " << done.err;
        }
        if (threads > 0) continue;
        const Json plan = json_of(planned, tight);
        EXPECT_EQ(plan["run_refuses"].is_null(), done.exit_code == 0) << plan["run_refuses"] << done.err;
        const Json memory = json_of({"info", model_path(), "--json"}, tight)["memory"];
        if (memory["fits"].get<bool>()) {
          EXPECT_EQ(done.exit_code, 0) << done.err;
        }
      }
    }
  }
  EXPECT_GT(ran, 0);
  EXPECT_GT(refused, 0);
}

// A control group, on a system whose files are replaced for the program alone. They do not follow what it uses.
TEST_F(LittleMemory, ControlGroups) {
  const std::string of_process = bytes_of("/proc/self/cgroup");
  int tried = 0;
  for (const bool old : {false, true}) {
    if (of_process.find(old ? ":memory:" : "0::/") == std::string::npos) continue;
    for (const std::uint64_t limit : {64 * kMiB, 256 * kMiB}) {
      SCOPED_TRACE(std::to_string(limit) + (old ? " version 1" : " version 2"));
      Surroundings tight;
      tight.group_limit = limit;
      tight.group_used = 20 * kMiB;
      tight.group_is_old = old;
      const Finished info = run_program({"info", model_path(), "--json"}, tight);
      if (info.exit_code == Surroundings::kNoNamespace) GTEST_SKIP() << "no mount namespaces here";
      EXPECT_EQ(Json::parse(info.out)["memory"]["available_bytes"], limit - tight.group_used);
      expect_agreement(model_path(), tight, limit);
      ++tried;
    }
  }
  if (tried == 0) GTEST_SKIP() << "no control groups of memory here";
}

}  // namespace
}  // namespace kvasir::test
