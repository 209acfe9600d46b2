// `kvasir demo` on the bundled model: what `scripts/run` shows a newcomer. Each policy's row follows from its answer.
#include <algorithm>

#include "cli/program.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

std::string tale() {
  return source_dir() + "/examples/the-bell-of-saint-anne.txt";
}

// Two numbers: the answer comes from the text.
TEST(Demo, FindsWhatIsKeptAndForgetsTheRest) {
  for (const std::string number : {"48213", "70596"}) {
    SCOPED_TRACE(number);
    const Json shown = json_of({"demo", "-m", bundled_model(), "-f", tale(), "--number", number, "--json"});
    const Json& full = shown["answers"][0];
    EXPECT_TRUE(full["found"]) << full;
    EXPECT_EQ(full["answer"], number);
    EXPECT_EQ(full["dropped"], 0);
    EXPECT_GT(full["seen"], 7900);
    const Json& snapkv = shown["answers"][1];
    EXPECT_TRUE(snapkv["found"]) << snapkv;
    EXPECT_LT(snapkv["kept"], 600);
    const Json& streaming = shown["answers"][2];
    EXPECT_FALSE(streaming["found"]) << streaming;
    EXPECT_EQ(streaming["kept"], 512);
    EXPECT_GT(streaming["dropped"], 7000);
    EXPECT_LT(streaming["bytes"].get<double>(), full["bytes"].get<double>() / 12);
    const Json& writes = shown["continuation"];
    EXPECT_GT(writes["seen"], writes["context"]);
    EXPECT_EQ(writes["tokens"], 400);
    EXPECT_EQ(writes["bytes"], writes["bytes_begin"]);
  }
}

TEST(Demo, ShowsATableThatSaysWhatWasForgotten) {
  const Finished done = run_program({"demo", "-m", bundled_model(), "-f", tale(), "-n", "0", "--kv", "full", "--kv",
                                     "streaming:cap=512", "--number", "12345"});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_NE(done.out.find("  12345: found\n"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find(": forgotten: 7"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("tokens dropped, the first is token 4\n"), std::string::npos) << done.out;
  EXPECT_EQ(std::ranges::count(done.out, '\n'), 10) << done.out;
}

TEST(Demo, WrongInput) {
  const auto error = [](const Arguments& more) {
    Arguments call = {"demo", "-m", bundled_model()};
    call.insert(call.end(), more.begin(), more.end());
    const Finished done = run_program(call);
    EXPECT_EQ(done.exit_code, 2);
    EXPECT_EQ(done.error_lines(), 1) << done.err;
    return done.err;
  };
  EXPECT_EQ(error({"-f", tale(), "--number", "12a"}), "kvasir: --number '12a' is not 1 to 9 digits\n");
  EXPECT_EQ(error({"-f", "/dev/null"}), "kvasir: '/dev/null' is empty; give a file with text\n");
  EXPECT_EQ(error({"-f", tale(), "--tokens", "-2"}), "kvasir: --tokens is -2; it must be at least 0\n");
  EXPECT_NE(error({"-f", tale(), "--kv", "ful"}).find("unknown retention policy 'ful'"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::test
