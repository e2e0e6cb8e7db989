// Stands in for cuBLAS's header of this name, whose package is large. libtorch's CUDA headers name the types in this folder in
// declarations that the shim does not use, so declarations are enough.
#pragma once
struct cublasContext;
typedef cublasContext* cublasHandle_t;
enum cublasStatus_t : int;
