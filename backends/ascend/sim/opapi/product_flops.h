// Counts the floating-point operations of the products of matrices that a thread computes with libtorch: operators are
// simulated with these, so that no operator has to state them.
#pragma once

namespace concord::ascend::sim {

// Counts during its lifetime. Threads: the constructing thread; one at a time on it.
class ProductFlops {
 public:
  ProductFlops();
  ~ProductFlops();
  ProductFlops(const ProductFlops&) = delete;
  ProductFlops& operator=(const ProductFlops&) = delete;

  // Returns the operations so far; a multiply-add counts as two.
  double count() const;
};

}  // namespace concord::ascend::sim
