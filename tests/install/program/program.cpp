// Reduces over one rank on the platform that the environment names, and prints the result.
#include <cstdio>
#include <exception>
#include <vector>

#include "platform/cpp/concord.hpp"

int main() {
  try {
    const concord::Platform platform = concord::current_platform();
    const concord::Device device(platform, 0);
    const concord::Stream stream(device);
    const concord::Communicator comm(device, 1, 0, concord::create_unique_id(platform));
    const std::vector<float> values{1, 2, 3};
    std::vector<float> sums(values.size());
    const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(float));
    const concord::Buffer send(device, bytes), recv(device, bytes);
    concord::copy(stream, send.data(), values.data(), bytes, concord::CopyKind::kHostToDevice);
    comm.all_reduce(stream, send.data(), recv.data(), 3, concord::DType::kF32, concord::ReduceOp::kSum);
    concord::copy(stream, sums.data(), recv.data(), bytes, concord::CopyKind::kDeviceToHost);
    stream.synchronize();
    std::printf("%s: all_reduce of 3 on %d rank: %g %g %g\n", std::string(platform.name()).c_str(), comm.size(),
                sums[0], sums[1], sums[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
