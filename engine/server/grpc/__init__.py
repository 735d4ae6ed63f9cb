"""The gRPC face: draftline.v1's services, their errors and interceptors."""
