"""Code of the Lambda functions. It runs in Lambda's own Python, so it imports nothing but the standard library, boto3 and itself."""
