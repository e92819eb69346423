import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.Scanner;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ's load program: RocketLoad NAMESERVER SLAVES; lines "ROW SECONDS" in, lines of JSON out. */
public final class RocketLoad {
    private static final int QUEUES = 4;
    private static final int READY = 1024;
    private static final int TIMEOUT_MS = 10_000;
    /** Sends without waiting, at most this many open. */
    private static final int OPEN = 1024;
    /** Messages of one topic may share a call; the client does not gather them by itself. */
    private static final int BATCH = 64;
    private static final double DRAIN_S = 15.0;
    /** A busy broker refuses some. They are not counted; more than this share is a row that failed. */
    private static final double REFUSED_MAX = 0.01;
    private static final String SMALL = "plain-256";
    private static final String LARGE = "plain-1024";
    private static final String TRANSACTIONS = "transactions";

    private final String nameServer;
    private final DefaultMQProducer plain;
    private final TransactionMQProducer transactional;

    private RocketLoad(String nameServer) throws Exception {
        this.nameServer = nameServer;
        plain = new DefaultMQProducer("plain");
        transactional = new TransactionMQProducer("transactional");
        transactional.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        for (DefaultMQProducer producer : List.of(plain, transactional)) {
            producer.setNamesrvAddr(nameServer);
            producer.setSendMsgTimeout(TIMEOUT_MS);
            producer.setRetryTimesWhenSendFailed(0);
            producer.setRetryTimesWhenSendAsyncFailed(0);
            producer.start();
        }
        for (String topic : List.of(SMALL, LARGE, TRANSACTIONS)) {
            makeTopic(topic);
        }
    }

    /** The brokers may not have told the name server of themselves yet. */
    private void makeTopic(String topic) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                plain.createTopic("TBW102", topic, QUEUES, Collections.emptyMap());
                check(plain.send(new Message(topic, new byte[1])));  // the slaves are there, too
                return;
            } catch (Exception error) {
                if (attempt == 60) {
                    throw error;
                }
                Thread.sleep(1000);
            }
        }
    }

    /** Messages with keys and random values, made beforehand. Each caller makes its own from them. */
    private static final class Source {
        private final String topic;
        private final byte[][] values = new byte[READY][];
        private final AtomicInteger next = new AtomicInteger();

        Source(String topic, int size) {
            this.topic = topic;
            Random random = new Random();
            for (int n = 0; n < READY; n++) {
                values[n] = new byte[size];
                random.nextBytes(values[n]);
            }
        }

        Message message() {
            int n = next.getAndIncrement() & (READY - 1);
            return new Message(topic, "", String.format("%08d", n), values[n]);
        }
    }

    private interface Send {
        void one(Message message) throws Exception;
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("answered " + result.getSendStatus());
        }
    }

    private static double since(long begin) {
        return (System.nanoTime() - begin) / 1e9;
    }

    /** One after the other. */
    private static String lone(Send send, Source source, double seconds) throws Exception {
        List<Long> took = new ArrayList<>();
        long begin = System.nanoTime();
        while (since(begin) < seconds) {
            long sent = System.nanoTime();
            send.one(source.message());
            took.add(System.nanoTime() - sent);
        }
        double all = since(begin);
        Collections.sort(took);
        return figure(took.size(), all) + json(", \"p50_ms\": %.6f}", took.get((took.size() - 1) / 2) / 1e6);
    }

    /** Threads that each send one after the other. */
    private static long side(int threads, Send send, Source source, double seconds, long begin) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Future<Long>> counts = new ArrayList<>();
            for (int n = 0; n < threads; n++) {
                counts.add(pool.submit(() -> {
                    long count = 0;
                    while (since(begin) < seconds) {
                        send.one(source.message());
                        count++;
                    }
                    return count;
                }));
            }
            long sum = 0;
            for (Future<Long> count : counts) {
                sum += count.get();
            }
            return sum;
        } finally {
            pool.shutdown();
        }
    }

    /** {@code batch}: so many messages in each call of the client. */
    private String manyPlain(String topic, int size, int batch, double seconds) throws Exception {
        Source source = new Source(topic, size);
        Semaphore room = new Semaphore(OPEN / batch);
        AtomicLong failed = new AtomicLong();
        SendCallback answered = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    failed.incrementAndGet();
                }
                room.release();
            }

            @Override
            public void onException(Throwable error) {
                failed.incrementAndGet();
                room.release();
            }
        };
        long count = 0;
        long begin = System.nanoTime();
        while (since(begin) < seconds) {
            room.acquire();
            if (batch == 1) {
                plain.send(source.message(), answered);
            } else {
                List<Message> messages = new ArrayList<>(batch);
                for (int n = 0; n < batch; n++) {
                    messages.add(source.message());
                }
                plain.send(messages, answered);
            }
            count += batch;
        }
        if (!room.tryAcquire(OPEN / batch, TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("some messages were not answered");
        }
        double all = since(begin);
        long refused = failed.get() * batch;
        if (refused > count * REFUSED_MAX) {
            throw new IllegalStateException(refused + " of " + count + " messages were refused");
        }
        return figure(count - refused, all) + "}";
    }

    private String reading(double seconds) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("reading-" + System.nanoTime());
        consumer.setNamesrvAddr(nameServer);
        consumer.setPullBatchSize(1024);
        consumer.start();
        try {
            List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(SMALL));
            consumer.assign(queues);
            for (MessageQueue queue : queues) {
                consumer.seekToBegin(queue);
            }
            long end = System.nanoTime() + TIMEOUT_MS * 1_000_000L;
            long count = 0;
            while (count == 0 && System.nanoTime() < end) {
                count = consumer.poll(1000).size();
            }
            long begin = System.nanoTime();
            double all = since(begin);
            while (all < seconds) {
                int read = consumer.poll(1000).size();
                if (read == 0) {
                    break;
                }
                count += read;
                all = since(begin);
            }
            return figure(count, all) + "}";
        } finally {
            consumer.shutdown();
        }
    }

    private void transaction(Message message) throws Exception {
        check(transactional.sendMessageInTransaction(message, null));
    }

    /** How many messages consumers can read: what was committed and stored. */
    private long visible() throws Exception {
        long sum = 0;
        for (MessageQueue queue : transactional.fetchPublishMessageQueues(TRANSACTIONS)) {
            sum += transactional.maxOffset(queue);
        }
        return sum;
    }

    /** A transaction is answered before its COMMIT is stored; so those that can be read are counted, twice. */
    private String transactions(int threads, double seconds) throws Exception {
        long before = visible();
        Source source = new Source(TRANSACTIONS, 256);
        long begin = System.nanoTime();
        long count = side(threads, this::transaction, source, seconds, begin);
        double all = since(begin);
        long atEnd = visible() - before;
        long ended = System.nanoTime();
        long later = atEnd;
        while (later < count && since(ended) < DRAIN_S) {
            Thread.sleep(100);
            later = visible() - before;
        }
        return figure(count, all)
            + json(", \"visible\": %d, \"visible_later\": %d, \"waited_s\": %.3f}", atEnd, later, since(ended));
    }

    private static String figure(long items, double seconds) {
        return json("{\"items\": %d, \"seconds\": %.6f", items, seconds);
    }

    private static String json(String format, Object... values) {
        return String.format(Locale.ROOT, format, values);
    }

    private String row(String name, double seconds) throws Exception {
        switch (name) {
            case "plain-256":
                return manyPlain(SMALL, 256, 1, seconds);
            case "plain-1024":
                return manyPlain(LARGE, 1024, 1, seconds);
            case "plain-batch-256":
                return manyPlain(SMALL, 256, BATCH, seconds);
            case "plain-batch-1024":
                return manyPlain(LARGE, 1024, BATCH, seconds);
            case "reading":
                return reading(seconds);
            case "lone-plain":
                return lone(message -> check(plain.send(message)), new Source(SMALL, 256), seconds);
            case "lone-tx":
                return lone(this::transaction, new Source(TRANSACTIONS, 256), seconds);
            case "tx-64":
                return transactions(64, seconds);
            case "tx-256":
                return transactions(256, seconds);
            case "sync-64":
                long begin = System.nanoTime();
                Source source = new Source(SMALL, 256);
                return figure(side(64, message -> check(plain.send(message)), source, seconds, begin), since(begin))
                    + "}";
            default:
                throw new IllegalArgumentException("no row " + name);
        }
    }

    public static void main(String[] arguments) throws Exception {
        RocketLoad load = new RocketLoad(arguments[0]);
        System.out.println("{\"ready\": []}");
        Scanner input = new Scanner(System.in);
        while (input.hasNextLine()) {
            String[] words = input.nextLine().split(" ");
            String answer;
            try {
                answer = load.row(words[0], Double.parseDouble(words[1]));
            } catch (Exception error) {
                String text = error.toString().replaceAll("[^\\x20-\\x7e]+", " ").replaceAll("[\"\\\\]", "'");
                answer = "{\"error\": \"" + text + "\"}";
            }
            System.out.println(answer);
        }
        System.exit(0);
    }
}
