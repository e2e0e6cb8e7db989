// See cublas_v2.h.
#pragma once
struct cublasLtContext;
typedef cublasLtContext* cublasLtHandle_t;
