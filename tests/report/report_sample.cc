// report_sample FILE.html: writes the sample report, for a look and for the browser test.
#include <cstdio>

#include "report/sample.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: report_sample FILE.html\n", stderr);
    return 2;
  }
  const auto status = kvasir::report::write_report(kvasir::report::test::sample_report(), argv[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
